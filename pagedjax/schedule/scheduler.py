"""Which tokens are computed in the next step: continuous batching over a bounded block pool.

`schedule` makes a Plan, the engine dispatches it, `commit` takes the tokens that it sampled. A
second plan may be made before the first is committed. The words of one request's progress:

    tokens  |-- prompt --|-- output, read --|-- pending --|
            0        num_prompt        len(tokens)     num_tokens
            |-- num_computed --------------------->|-- num_uncomputed --|

A request in prefill computes chunks of the tokens that the host knows. Once its last token was
sampled in its slot, it decodes: one token a step, whose value only the device needs to know.

Full blocks enter the prefix trie when the step that computes them is planned, so the next plan may
hit them: the device runs in order. Blocks of generated text enter when their tokens are known.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence
from operator import itemgetter

from pagedjax.outputs import FinishReason
from pagedjax.schedule.blocks import BlockPool, watermark
from pagedjax.schedule.holdings import Holdings
from pagedjax.schedule.plan import Plan, Row
from pagedjax.schedule.request import Request, Status


class Scheduler:
    """First come, first served within a priority, under a token budget, slots and blocks.

    Every decoding request has a row in every step, unless what it may draw depends on a token in
    flight. Prompts have the rest of the budget, at least 1 and at least `max_num_batched_tokens -
    max_num_seqs + 1` tokens, oldest first.

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
        # No more requests run than the budget has tokens, so that every step has one for each.
        slots = min(max_num_seqs, max_num_batched_tokens)
        self._holdings = Holdings(blocks, slots, prefix_caching)
        self.num_preemptions = 0
        self.num_waiting = 0
        self.prefix_hit_tokens = 0
        self.prefix_query_tokens = 0
        self.running: list[Request] = []  # by Request.order
        self._waiting: list[tuple[tuple[int, int, int], Request]] = []  # a heap, finished included
        self._watermark = watermark(blocks.num_blocks)

    def has_unfinished(self) -> bool:
        """True while any request waits or runs."""
        return bool(self.running) or self.num_waiting > 0

    def add(self, request: Request) -> None:
        """Queue a new request. Its siblings start with it, when its prompt has been computed."""
        self._enqueue(request)

    def abort(self, request: Request) -> None:
        """End a request now; rows of it that are in flight will be dropped at their commit."""
        self._finish(request, "abort")

    def stop(self, request: Request, reason: FinishReason, why: str) -> None:
        """End a request because of its text (see `SampleOutput`); outranks other reasons."""
        self._finish(request, reason, why)

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
        if not decode and not chunks and self.num_waiting and self._park_ranked():
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
                continue  # aborted, or stopped by the token before; or it wants no token
            request.num_pending -= 1
            request.tokens.append(token)
            if not len(request.tokens) % self.blocks.block_size:  # a block may just have filled
                self._holdings.enter_full_blocks(request)
            if (why := request.why_it_ends) is not None:
                self._finish(request, *why)
            progressed.append(request)
        for row in plan.chunks:
            request = row.request
            if request.score and not request.is_finished:
                progressed.append(request)
                if row.end == len(request.tokens) - 1:
                    self._finish(request, "length")
        return progressed

    def fork(self, parent: Request, child: Request) -> None:
        """Start `child`, a copy of `parent` with nothing in flight, at the parent's last token.

        A parent that has computed its prompt shares all its blocks; whoever first writes into a
        shared one gets a copy. Otherwise, or without a free slot, the child waits like a new one.
        """
        is_computed = parent.num_computed >= max(1, len(child.tokens) - 1)  # and so it runs
        if is_computed and self._holdings.free_slots:
            self._join(child, parent, parent.num_computed)
        else:
            self._enqueue(child)

    def resume(self, request: Request) -> None:
        """Go on with a ranked request that was given its next token."""
        if request.status is Status.RUNNING and request.num_uncomputed > 1:
            self._preempt(request)  # it was being recomputed, with blocks up to its old end
        elif request.status is Status.HELD:
            self._enqueue(request)

    def rollback(self, request: Request, num_tokens: int) -> None:
        """Drop the last tokens of a request with nothing in flight, and their keys."""
        del request.tokens[len(request.tokens) - num_tokens :]
        if request.status is Status.RUNNING:
            self._holdings.rewind(request)

    def restart(self) -> None:
        """Queue every running request again and forget what is in flight, after a failed step.

        What that step was to compute may be in the trie, so the trie is emptied.
        """
        for request in list(self.running):
            self._preempt(request)
        for _, request in self._waiting:
            request.num_pending = 0
        self.blocks.clear()

    def check(self) -> None:
        """Raise AssertionError unless blocks, slots and queues agree with each other."""
        self.blocks.check(request.block_ids for request in self.running)
        slots = [request.slot for request in self.running] + self._holdings.free_slots
        assert len(set(slots)) == len(slots), "a slot is owned twice"
        for _, request in self._waiting:
            assert request.is_finished or not request.block_ids, "a waiting request holds blocks"
        alive = sum(not request.is_finished for _, request in self._waiting)
        assert alive == self.num_waiting, "the waiting count is wrong"

    # -- choosing ------------------------------------------------------------------------------

    def _schedule_decode(self, copies: list[tuple[int, int]]) -> list[Row]:
        rows: list[Row] = []
        for request in list(self.running):  # a copy: making room may preempt those at the end
            if request.status is not Status.RUNNING or request.awaits_token:
                continue
            if self._make_room(request, copies) and request.slot_has_token:
                rows.append(Row(request, request.num_computed, 1, (request,)))
        # Neighbours of similar length: attention computes rows in groups up to their longest.
        return sorted(rows, key=itemgetter(1))

    def _make_room(self, request: Request, copies: list[tuple[int, int]]) -> bool:
        """Give `request` a block of its own to write next; False if it had to be preempted.

        The newest requests are preempted until there is a block. A shared or cached block is
        replaced by a copy; preempting the others that share it may make that needless.
        """
        while not self._holdings.can_write(request):
            if self.blocks.can_allocate(1):
                copy = self._holdings.take_block(request)
                copies += [copy] if copy else []
                break
            victim = self.running[-1]
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _admit(self) -> Request | None:
        """Move the first waiting request to running, with the blocks of all its known tokens."""
        self._drop_idle()
        if not self._waiting or not self._holdings.free_slots:
            return None
        request = self._waiting[0][1]
        if request.num_pending:  # it would be recomputed without the token in flight
            return None
        if not self._holdings.start(request, self._watermark if self.running else 0):
            return None
        heapq.heappop(self._waiting)
        self.num_waiting -= 1
        self._run(request)
        if request.num_cached_tokens is None and not request.score:
            request.num_cached_tokens = request.num_computed
            self.prefix_hit_tokens += request.num_computed
            self.prefix_query_tokens += request.num_tokens
        return request

    def _drop_idle(self) -> None:
        """Pop what has ended, or got its candidates in the queue from a step in flight."""
        while self._waiting and self._waiting[0][1].is_idle:
            request = heapq.heappop(self._waiting)[1]
            if not request.is_finished:
                request.status = Status.HELD
                self.num_waiting -= 1

    def _chunk(self, request: Request, budget: int) -> Row:
        count = min(request.num_computable, budget)
        end = request.num_computed + count
        samples: tuple[Request, ...] = ()
        if end == request.num_tokens and not request.score:
            samples = (request, *self._start_siblings(request, end))
        return Row(request, request.num_computed, count, samples)

    def _start_siblings(self, request: Request, num_computed: int) -> list[Request]:
        """Let those that wait for this prompt share it; without a slot they queue for one."""
        started = []
        for sibling in request.siblings:
            if self._holdings.free_slots:
                self._join(sibling, request, num_computed)
                sibling.num_cached_tokens = request.num_cached_tokens
                started.append(sibling)
            else:
                self._enqueue(sibling)
        request.siblings = []
        return started

    def _advance(self, row: Row) -> None:
        """Count the row as done: whatever is planned next runs after it."""
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

    # -- changing state ------------------------------------------------------------------------

    def _enqueue(self, request: Request) -> None:
        request.status = Status.WAITING
        heapq.heappush(self._waiting, (request.order, request))
        self.num_waiting += 1

    def _join(self, child: Request, parent: Request, num_computed: int) -> None:
        self._holdings.join(child, parent, num_computed)
        self._run(child)

    def _run(self, request: Request) -> None:
        request.status = Status.RUNNING
        bisect.insort(self.running, request, key=lambda each: each.order)

    def _park_ranked(self) -> bool:
        """Take slots and blocks from those that have their candidates and only wait for others."""
        ranked = [request for request in self.running if request.candidates is not None]
        for request in ranked:
            self._preempt(request)  # which does not queue it
        return bool(ranked)

    def _preempt(self, request: Request) -> None:
        """Back to the queue, to be recomputed; a token of it in flight is still accepted.

        A ranked request waits outside the queue for its next token, and is recomputed with it.
        """
        self._release(request)
        if request.candidates is not None:
            request.status = Status.HELD
            return
        self.num_preemptions += 1
        self._enqueue(request)

    def _release(self, request: Request) -> None:
        self.running.remove(request)
        self._holdings.release(request)

    def _finish(
        self, request: Request, reason: FinishReason, stop_reason: int | str | None = None
    ) -> None:
        if request.status is Status.RUNNING:
            self._release(request)
        elif request.status is Status.WAITING:
            self.num_waiting -= 1
        request.status = Status.FINISHED
        request.finish_reason, request.stop_reason = reason, stop_reason
