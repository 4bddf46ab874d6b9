"""The scheduler: continuous batching over a bounded block pool.

`schedule` chooses the tokens of the next step and returns a Plan, the engine dispatches it, and
`commit` takes the tokens it sampled. A second plan may be made before the first is committed. The
terms for one request's progress:

    tokens  |-- prompt --|-- output, read --|-- pending --|
            0        num_prompt        len(tokens)     num_tokens
            |-- num_computed --------------------->|-- num_uncomputed --|

A request in prefill computes chunks of tokens that the host knows. Once a token was sampled into
its slot, it decodes: one token per step, whose value only the device needs to know.

Full blocks enter the prefix trie when the step that computes them is planned. The next plan may
already hit them, because the device runs steps in order. Blocks of generated tokens enter the trie
when the host has read those tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from pagedjax.outputs import FinishReason
from pagedjax.schedule.blocks import BlockPool, watermark
from pagedjax.schedule.plan import Plan, Row
from pagedjax.schedule.queues import Queues
from pagedjax.schedule.request import Request, Status


class Scheduler:
    """First come, first served within a priority, limited by token budget, slots and blocks.

    Every decoding request has a row in every step, unless the choice of its next token depends on
    a token in flight. Prefill gets the rest of the budget, oldest request first: at least
    `max_num_batched_tokens - max_num_seqs + 1` tokens, and never less than 1.

    prefix_caching: whether full blocks are kept and found again by their tokens.
    """

    def __init__(
        self,
        blocks: BlockPool,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        prefix_caching: bool = True,
    ) -> None:
        self.blocks = blocks
        self.max_num_batched_tokens = max_num_batched_tokens
        # At most `max_num_batched_tokens` requests run at once, so every running request gets at
        # least one token per step.
        slots = min(max_num_seqs, max_num_batched_tokens)
        self._queues = Queues(blocks, slots, prefix_caching)
        self._holdings = self._queues.holdings
        self.running = self._queues.running
        self.num_generated = 0
        self.prefix_hit_tokens = 0
        self.prefix_query_tokens = 0
        self._watermark = watermark(blocks.num_blocks)

    @property
    def num_waiting(self) -> int:
        """Requests in the waiting queue."""
        return len(self._queues.waiting)

    @property
    def num_preemptions(self) -> int:
        """How often a running request lost its blocks and was queued again."""
        return self._queues.num_preemptions

    def has_unfinished(self) -> bool:
        """True while any request waits or runs."""
        return bool(self.running) or self.num_waiting > 0

    def add(self, request: Request) -> None:
        """Queue a new request. Its siblings start once its prompt has been computed."""
        self._queues.waiting.add(request)

    def abort(self, request: Request) -> None:
        """End a request now; its rows in flight are dropped when they are committed."""
        self._queues.finish(request, "abort")

    def stop(self, request: Request, reason: FinishReason, why: str) -> None:
        """End a request because of its text (see `SampleOutput`); replaces any other reason."""
        self._queues.finish(request, reason, why)

    def schedule(self) -> Plan:
        """Choose the next step: decode rows first, then chunks, then newly admitted prompts."""
        preemptions = self.num_preemptions
        copies: list[tuple[int, int]] = []
        decode = self._schedule_decode(copies)
        budget = self.max_num_batched_tokens - len(decode)
        chunks: list[Row] = []
        for request in list(self.running):  # a copy: siblings may join
            if budget and request.is_in_prefill:
                chunks.append(self._chunk(request, budget))
                budget -= chunks[-1].num_tokens
        if self.num_preemptions == preemptions:
            while budget and (admitted := self._admit()):
                chunks.append(self._chunk(admitted, budget))
                budget -= chunks[-1].num_tokens
        if not decode and not chunks and self.num_waiting and self._queues.park_ranked():
            return self.schedule()
        plan = Plan(decode, chunks, copies)
        for row in plan.rows:
            self._advance(row)
        return plan

    def commit(self, plan: Plan, token_ids: Sequence[int]) -> list[Request]:
        """Take the tokens of a plan's samplers; return the requests that made progress."""
        progressed = []
        for request, token in zip(plan.samplers, token_ids, strict=True):
            if request.is_finished or request.num_candidates:
                continue  # aborted, or stopped by the token before; or it draws no token
            self._take(request, token)
            progressed.append(request)
        for row in plan.chunks:
            request = row.request
            if request.score and not request.is_finished:
                progressed.append(request)
                if row.end == len(request.tokens) - 1:
                    self._queues.finish(request, "length")
        return progressed

    def fork(self, parent: Request, child: Request) -> None:
        """Start `child`, a copy of `parent` with nothing in flight, at the parent's last token.

        If the parent has computed its prompt, the child shares all its blocks; the first of them
        to write into a shared block gets a copy. Otherwise, or without a free slot, the child
        joins the waiting queue.
        """
        is_computed = parent.num_computed >= max(1, len(child.tokens) - 1)  # and so it runs
        if is_computed:
            self._queues.join(child, parent, parent.num_computed)
        else:
            self._queues.waiting.add(child)

    def resume(self, request: Request) -> None:
        """Continue a ranked request that was given its next token."""
        if request.status is Status.RUNNING and request.num_uncomputed > 1:
            self._queues.preempt(request)  # it was being recomputed, with blocks up to its old end
        elif request.status is Status.HELD:
            self._queues.waiting.add(request)

    def rollback(self, request: Request, num_tokens: int) -> None:
        """Drop the last tokens of a request that has nothing in flight, and their keys."""
        del request.tokens[len(request.tokens) - num_tokens :]
        if request.status is Status.RUNNING:
            self._holdings.rewind(request)

    def restart(self) -> None:
        """After a failed step: queue every running request again and drop what is in flight.

        The trie may hold blocks that the failed step never computed, so it is emptied.
        """
        for request in list(self.running):
            self._queues.preempt(request)
        for request in self._queues.waiting:
            request.num_pending = 0
        self.blocks.clear()

    def check(self) -> None:
        """Raise AssertionError unless blocks, slots and queues agree with each other."""
        self._queues.check()

    # -- choosing ------------------------------------------------------------------------------

    def _schedule_decode(self, copies: list[tuple[int, int]]) -> list[Row]:
        rows: list[Row] = []
        for request in list(self.running):  # a copy: making room may preempt those at the end
            if request.status is not Status.RUNNING or request.awaits_token:
                continue
            if self._make_room(request, copies) and request.slot_has_token:
                rows.append(Row(request, request.num_computed, 1, (request,)))
        # Sort by length: attention computes rows in groups, each up to its longest context.
        return sorted(rows, key=itemgetter(1))

    def _make_room(self, request: Request, copies: list[tuple[int, int]]) -> bool:
        """Give `request` a private block for its next token; False if it had to be preempted.

        The newest requests are preempted until a block is available. A shared or cached block is
        replaced by a copy, unless preemption makes the request its only holder.
        """
        while not self._holdings.can_write(request):
            if self.blocks.can_allocate(1):
                copy = self._holdings.take_block(request)
                copies += [copy] if copy else []
                break
            victim = self.running[-1]
            self._queues.preempt(victim)
            if victim is request:
                return False
        return True

    def _admit(self) -> Request | None:
        """Start the first waiting request, if there is one and it fits."""
        request = self._queues.admit(self._watermark if self.running else 0)
        if request is None:
            return None
        if request.num_cached_tokens is None and not request.score:
            request.num_cached_tokens = request.num_computed
            self.prefix_hit_tokens += request.num_computed
            self.prefix_query_tokens += request.num_tokens
        return request

    def _chunk(self, request: Request, budget: int) -> Row:
        count = min(request.num_computable, budget)
        end = request.num_computed + count
        samples: tuple[Request, ...] = ()
        if end == request.num_tokens and not request.score:
            samples = (request, *self._start_siblings(request, end))
        return Row(request, request.num_computed, count, samples)

    def _start_siblings(self, request: Request, num_computed: int) -> list[Request]:
        """Start the siblings that wait for this prompt; without a free slot they are queued."""
        started = []
        for sibling in request.siblings:
            if self._queues.join(sibling, request, num_computed):
                sibling.num_cached_tokens = request.num_cached_tokens
                started.append(sibling)
        request.siblings = []
        return started

    def _advance(self, row: Row) -> None:
        """Count the row as computed: every later plan runs after it."""
        request = row.request
        request.num_computed += row.num_tokens
        if row.num_tokens > 1 or not request.num_computed % self.blocks.block_size:
            self._holdings.enter_full_blocks(request)
        for each in row.samples:
            if each.num_candidates:
                continue
            each.num_pending += 1
            each.slot_has_token = True
            if each is not request:
                each.nodes = list(request.nodes)

    def _take(self, request: Request, token: int) -> None:
        """Append a token that was read from the device, and end the request if it is the last."""
        request.num_pending -= 1
        request.tokens.append(token)
        self.num_generated += 1
        if not len(request.tokens) % self.blocks.block_size:  # a block may just have filled
            self._holdings.enter_full_blocks(request)
        if (why := request.why_it_ends) is not None:
            self._queues.finish(request, *why)
