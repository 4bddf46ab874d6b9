"""A device in pure Python that executes a plan exactly as it is written.

It stores tokens where an engine stores keys and values, and chooses each next token from all
tokens of the context, read through the block table. A wrong position, block, slot or length
therefore changes the output or fails an assertion.
"""

from collections import deque

from pagedjax.schedule.plan import Plan, Row
from pagedjax.schedule.request import Request
from pagedjax.schedule.scheduler import Scheduler

VOCAB = 1000


def next_token(context: list[int]) -> int:
    """The token that follows `context`, a hash of it."""
    return hash(tuple(context)) % VOCAB


def continuation(prompt: list[int], length: int, stops: frozenset[int] = frozenset()) -> list[int]:
    """The expected output after `prompt`: `length` tokens, or up to the first of `stops`."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + length:
        tokens.append(next_token(tokens))
        if tokens[-1] in stops:
            break
    return tokens[len(prompt) :]


class FakeDevice:
    """A pool of N blocks of T tokens, and M slots."""

    def __init__(self, num_blocks: int, block_size: int, num_slots: int) -> None:
        self._block_size = block_size
        self._pool: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self._last_token: list[int | None] = [None] * num_slots
        self._lengths = [0] * num_slots

    def run(self, plan: Plan) -> list[int]:
        """Execute a plan; return one token per sample of its rows."""
        for source, target in plan.copies:
            self._pool[target] = list(self._pool[source])
        for row in plan.decode:
            assert row.num_tokens == 1 and self._lengths[row.request.slot] == row.start
            self._write(row, [self._last_token[row.request.slot]])
        for row in plan.chunks:
            self._write(row, row.request.tokens[row.start : row.end])
        return [self._sample(row, each) for row in plan.rows for each in row.samples]

    def _write(self, row: Row, tokens: list[int | None]) -> None:
        assert len(tokens) == row.num_tokens, "a chunk has tokens that the host does not know yet"
        for position, token in enumerate(tokens, row.start):
            block = row.request.block_ids[position // self._block_size]
            self._pool[block][position % self._block_size] = token
        self._lengths[row.request.slot] = row.end

    def _sample(self, row: Row, request: Request) -> int:
        self._lengths[request.slot] = row.end
        self._last_token[request.slot] = next_token(self._context(row))
        return self._last_token[request.slot]

    def _context(self, row: Row) -> list[int | None]:
        blocks = row.request.block_ids
        return [
            self._pool[blocks[position // self._block_size]][position % self._block_size]
            for position in range(row.end)
        ]


class Driver:
    """Steps a scheduler as the engine does, with `in_flight` (0 or 1) uncommitted plans."""

    def __init__(self, scheduler: Scheduler, num_slots: int, in_flight: int) -> None:
        self.scheduler = scheduler
        self.plans: list[Plan] = []
        self._num_slots = num_slots
        self._in_flight = in_flight
        self._waiting_to_commit: deque[tuple[Plan, list[int]]] = deque()
        blocks = scheduler.blocks
        self._device = FakeDevice(blocks.num_blocks, blocks.block_size, num_slots)

    def step(self) -> list[Request]:
        """Run one step; return the requests that made progress."""
        plan = self.dispatch()
        if len(self._waiting_to_commit) > (self._in_flight if plan.rows else 0):
            return self.commit()
        return []

    def dispatch(self) -> Plan:
        """Schedule a plan, check its limits, and execute it on the fake device."""
        plan = self.scheduler.schedule()
        assert sum(row.num_tokens for row in plan.rows) <= self.scheduler.max_num_batched_tokens
        assert len(self.scheduler.running) <= self._num_slots
        slots = [row.request.slot for row in plan.rows]
        assert len(set(slots)) == len(slots)
        self.scheduler.check()
        if plan.rows:
            self.plans.append(plan)
            self._waiting_to_commit.append((plan, self._device.run(plan)))
        return plan

    def drain(self) -> None:
        """Commit all plans in flight."""
        while self._waiting_to_commit:
            self.commit()

    def commit(self) -> list[Request]:
        """Commit the oldest plan."""
        progressed = self.scheduler.commit(*self._waiting_to_commit.popleft())
        self.scheduler.check()
        return progressed

    def restart(self) -> None:
        """Reset as the engine does after a failed step: no plan in flight, no running request."""
        self._waiting_to_commit.clear()
        self.scheduler.restart()
        self.scheduler.check()

    def run(self, max_steps: int = 10_000) -> int:
        """Step until every request is finished and committed; return the number of steps."""
        steps = 0
        while self.scheduler.has_unfinished() or self._waiting_to_commit:
            assert steps < max_steps, "the scheduler makes no progress"
            self.step()
            steps += 1
        return steps
