"""A pool under a queue that never empties: what its memory is used for, step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from pagedjax.schedule.accounting import PoolAccounting, account
from pagedjax.schedule.blocks import BlockPool, watermark

WARM_UP = 5  # the requests that finish first, one in so many, are not counted


@dataclass(eq=False)
class Live:
    """A request. The key of its last token is never needed, so never stored.

    known: tokens whose keys the step that admits it stores: the prompt, and after a preemption
    all that it had. stored: keys it has now. place: what its manager gave it.
    """

    prompt_len: int
    output_len: int
    known: int = 0
    stored: int = 0
    place: list[int] = field(default_factory=list)

    @property
    def final_len(self) -> int:
        """Keys it will have at its end."""
        return self.prompt_len + self.output_len - 1


class Manager(Protocol):
    """Gives requests room for their keys. Sizes are in token slots."""

    num_slots: int

    def admit(self, request: Live, others_run: bool) -> bool:
        """Give room for the known tokens, if there is."""

    def grow(self, request: Live) -> bool:
        """Give room for one more token, if there is."""

    def release(self, request: Live) -> None:
        """Take all its room back."""

    def slots(self, request: Live) -> int:
        """The room it has."""

    def is_fragmented(self, request: Live) -> bool:
        """Whether a request that was not admitted would fit if the free room were in one piece."""


@dataclass(frozen=True)
class SteadyState:
    """Means over the counted steps.

    The shares are of the whole memory and add up to 1: `stored` (keys), `reserved` (room that its
    holder fills later), `internal` (room that its holder never fills), `external` (free, enough
    for the next request, but in pieces) and `idle` (free, and not enough for the next request, or
    kept free). utilization: keys over room given out. preemptions: per finished request.
    recomputed: share of all keys written that a preempted request had before.
    """

    steps: int
    finished: int
    preemptions: float
    recomputed: float
    mean_running: float
    mean_len: float
    utilization: float
    stored: float
    reserved: float
    internal: float
    external: float
    idle: float


class PagedManager:
    """The engine's pool: blocks on demand, a watermark at admission as in the scheduler."""

    def __init__(self, num_slots: int, block_size: int) -> None:
        self.num_slots = num_slots
        self.blocks = BlockPool(num_slots // block_size, block_size)
        self._watermark = watermark(self.blocks.num_blocks)

    def admit(self, request: Live, others_run: bool) -> bool:
        """Blocks for the known tokens, if the watermark stays free."""
        need = self.blocks.blocks_for(request.known)
        if not self.blocks.can_allocate(need + (self._watermark if others_run else 0)):
            return False
        request.place = self.blocks.allocate(need)
        return True

    def grow(self, request: Live) -> bool:
        """A block, when the last one is full."""
        if request.stored < self.slots(request):
            return True
        if not self.blocks.can_allocate(1):
            return False
        request.place += self.blocks.allocate(1)
        return True

    def release(self, request: Live) -> None:
        """All blocks, at once."""
        self.blocks.release(request.place)
        request.place = []

    def slots(self, request: Live) -> int:
        """Whole blocks."""
        return len(request.place) * self.blocks.block_size

    def is_fragmented(self, request: Live) -> bool:
        """Never: any free block is as good as any other."""
        return False

    def account(self, running: list[Live]) -> PoolAccounting:
        """The blocks and tokens of the running requests."""
        return account(self.blocks, ((each.place, each.stored) for each in running))


class Simulation:
    """Steps of one token for each running request; the prompt is computed in one step.

    The queue is first come, first served. When a request cannot grow the newest is preempted: it
    goes back to the head of the queue and will be computed again.
    """

    def __init__(self, manager: Manager, requests: Iterator[tuple[int, int]]) -> None:
        self.manager = manager
        self.running: list[Live] = []  # oldest first
        self.finished = 0
        self.preemptions = 0
        self.written = self.lost = 0  # keys
        self._requests = requests
        self._preempted: deque[Live] = deque()
        self._next = self._draw()

    def run(self, num_requests: int) -> SteadyState:
        """Step until so many requests have finished; the first fifth of them is not counted."""
        sums = Sums()
        warm_up = num_requests // WARM_UP
        while self.finished < num_requests:
            self._schedule()
            if self.finished >= warm_up:
                sums.add(self.manager, self.running, self._head())
            self._finish()
        return sums.means(self)

    def _draw(self) -> Live:
        prompt_len, output_len = next(self._requests)
        return Live(prompt_len, output_len, known=prompt_len)

    def _head(self) -> Live:
        return self._preempted[0] if self._preempted else self._next

    def _schedule(self) -> None:
        preemptions = self.preemptions
        for request in list(self.running):
            if request.place and self._make_room(request):
                request.stored += 1
                self.written += 1
        if self.preemptions > preemptions:
            return  # as in the scheduler: who was just preempted is not admitted at once
        while self.manager.admit(request := self._head(), bool(self.running)):
            request.stored = request.known
            self.written += request.known
            self.running.append(request)
            if self._preempted:
                self._preempted.popleft()
            else:
                self._next = self._draw()

    def _make_room(self, request: Live) -> bool:
        while not self.manager.grow(request):
            victim = self.running.pop()
            self.manager.release(victim)
            self.lost += victim.stored
            victim.known, victim.stored = victim.stored + 1, 0
            self._preempted.appendleft(victim)
            self.preemptions += 1
            if victim is request:
                return False
        return True

    def _finish(self) -> None:
        done = [each for each in self.running if each.stored == each.final_len]
        for request in done:
            self.manager.release(request)
        self.finished += len(done)
        self.running = [each for each in self.running if each.place]


class Sums:
    """Adds up the steps of a simulation."""

    def __init__(self) -> None:
        self.steps = self.running = 0
        self.stored = self.reserved = self.internal = self.external = self.idle = 0

    def add(self, manager: Manager, running: list[Live], head: Live) -> None:
        """Count a step. Keys, and the three kinds of waste, are disjoint."""
        given = 0
        for request in running:
            slots, final = manager.slots(request), request.final_len
            given += slots
            self.stored += request.stored
            self.reserved += min(slots, final) - request.stored
            self.internal += max(slots - final, 0)
        free = manager.num_slots - given
        if manager.is_fragmented(head):
            self.external += free
        else:
            self.idle += free
        self.steps += 1
        self.running += len(running)

    def means(self, simulation: Simulation) -> SteadyState:
        """The result, as shares."""
        total = self.steps * simulation.manager.num_slots
        return SteadyState(
            steps=self.steps,
            finished=simulation.finished,
            preemptions=simulation.preemptions / simulation.finished,
            recomputed=simulation.lost / simulation.written,
            mean_running=self.running / self.steps,
            mean_len=self.stored / self.running,
            utilization=self.stored / (self.stored + self.reserved + self.internal),
            stored=self.stored / total,
            reserved=self.reserved / total,
            internal=self.internal / total,
            external=self.external / total,
            idle=self.idle / total,
        )


def closed_form_waste(mean_len: float, block_size: int) -> float:
    """Share of the room given out that holds no key, when every length is as likely as the next.

    The last block of a sequence then has 0 to T - 1 unused slots: (T - 1) / 2 on average.
    """
    unused = (block_size - 1) / 2
    return unused / (mean_len + unused)
