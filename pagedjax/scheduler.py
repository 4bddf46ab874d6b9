"""Which tokens are computed in the next step: continuous batching over a bounded block pool.

`schedule` makes a Plan, the engine dispatches it, `commit` takes the tokens that it sampled. A
second plan may be made before the first is committed. The words of one request's progress:

    tokens  |-- prompt --|-- output, read --|-- pending --|
            0        num_prompt        len(tokens)     num_tokens
            |-- num_computed --------------------->|-- num_uncomputed --|

A request in prefill computes chunks of the tokens that the host knows. Once its last token was
sampled in its slot, it decodes: one token a step, whose value only the device needs to know.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence
from typing import NamedTuple

from pagedjax.blocks import BlockPool
from pagedjax.request import FinishReason, Request, Status


class Row(NamedTuple):
    """One request's share of a step: positions [start, start + num_tokens).

    samples: the logits of the last of these positions choose the request's next token.
    """

    request: Request
    start: int
    num_tokens: int
    samples: bool

    @property
    def end(self) -> int:
        """One past the last position."""
        return self.start + self.num_tokens


class Plan(NamedTuple):
    """A step. `decode` rows have one token, taken from the slot; `chunks` bring known tokens."""

    decode: list[Row]
    chunks: list[Row]

    @property
    def rows(self) -> list[Row]:
        """All rows, in the order of their tokens in the step."""
        return self.decode + self.chunks

    @property
    def sampling_rows(self) -> list[Row]:
        """The rows that bring a token, in the order in which `commit` takes the tokens."""
        return [row for row in self.rows if row.samples]


class Scheduler:
    """First come, first served within a priority, under a token budget, slots and blocks."""

    def __init__(self, blocks: BlockPool, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.blocks = blocks
        self.max_num_batched_tokens = max_num_batched_tokens
        self.num_preemptions = 0
        self.num_waiting = 0
        self.running: list[Request] = []  # by Request.order
        self._waiting: list[tuple[tuple[int, int], Request]] = []  # a heap; may hold finished ones
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))
        # Blocks kept free at admission, so that a new prompt does not evict a running request.
        self._watermark = blocks.num_blocks // 100

    def has_unfinished(self) -> bool:
        """True while any request waits or runs."""
        return bool(self.running) or self.num_waiting > 0

    def add(self, request: Request) -> None:
        """Queue a new request."""
        self._enqueue(request)

    def abort(self, request: Request) -> None:
        """End a request now; rows of it that are in flight will be dropped at their commit."""
        self._finish(request, "abort")

    def schedule(self) -> Plan:
        """Choose the next step: decode rows first, then chunks, then newly admitted prompts."""
        preemptions = self.num_preemptions
        decode = self._schedule_decode()
        budget = self.max_num_batched_tokens - len(decode)
        chunks: list[Row] = []
        for request in self.running:
            if budget and self._in_prefill(request):
                chunks.append(self._chunk(request, budget))
                budget -= chunks[-1].num_tokens
        if self.num_preemptions == preemptions:
            while budget and (admitted := self._admit()):
                chunks.append(self._chunk(admitted, budget))
                budget -= chunks[-1].num_tokens
        for row in decode + chunks:
            self._advance(row)
        return Plan(decode, chunks)

    def commit(self, plan: Plan, token_ids: Sequence[int]) -> list[Request]:
        """Take the tokens of a plan's sampling rows; return the requests that made progress."""
        progressed = []
        for row, token in zip(plan.sampling_rows, token_ids, strict=True):
            if row.request.is_finished:  # aborted, or stopped by the token before
                continue
            row.request.num_pending -= 1
            row.request.tokens.append(token)
            self._stop_if_done(row.request, token)
            progressed.append(row.request)
        for row in plan.chunks:
            request = row.request
            if request.score and not request.is_finished:
                progressed.append(request)
                if row.end == len(request.tokens) - 1:
                    self._finish(request, "length")
        return progressed

    def restart(self) -> None:
        """Queue every running request again and forget what is in flight, after a failed step."""
        for request in list(self.running):
            self._preempt(request)
        for _, request in self._waiting:
            request.num_pending = 0

    def check(self) -> None:
        """Raise AssertionError unless blocks, slots and queues agree with each other."""
        self.blocks.check(request.block_ids for request in self.running)
        slots = [request.slot for request in self.running] + self._free_slots
        assert len(set(slots)) == len(slots), "a slot is owned twice"
        for _, request in self._waiting:
            assert request.is_finished or not request.block_ids, "a waiting request holds blocks"
        alive = sum(not request.is_finished for _, request in self._waiting)
        assert alive == self.num_waiting, "the waiting count is wrong"

    # -- choosing ------------------------------------------------------------------------------

    def _schedule_decode(self) -> list[Row]:
        rows: list[Row] = []
        for request in list(self.running):  # a copy: growing may preempt those at the end
            if len(rows) == self.max_num_batched_tokens:
                break
            at_limit = request.num_pending and request.num_tokens >= request.max_len
            if request.status is not Status.RUNNING or not request.slot_has_token or at_limit:
                continue
            if self._grow(request):
                rows.append(Row(request, request.num_computed, 1, samples=True))
        return rows

    def _grow(self, request: Request) -> bool:
        """Give `request` the block of its next token, preempting the newest; False if itself."""
        need = self.blocks.blocks_for(request.num_computed + 1) - len(request.block_ids)
        while not self.blocks.can_allocate(need):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is request:
                return False
        request.block_ids += self.blocks.allocate(need)
        return True

    def _admit(self) -> Request | None:
        """Move the first waiting request to running, with the blocks of all its known tokens."""
        while self._waiting and self._waiting[0][1].is_finished:
            heapq.heappop(self._waiting)
        if not self._waiting or not self._free_slots:
            return None
        request = self._waiting[0][1]
        need = self.blocks.blocks_for(request.num_tokens)
        if not self.blocks.can_allocate(need + (self._watermark if self.running else 0)):
            return None
        heapq.heappop(self._waiting)
        self.num_waiting -= 1
        request.block_ids = self.blocks.allocate(need)
        request.slot = self._free_slots.pop()
        request.status = Status.RUNNING
        bisect.insort(self.running, request, key=lambda each: each.order)
        return request

    @staticmethod
    def _in_prefill(request: Request) -> bool:
        return not request.slot_has_token and _num_computable(request) > 0

    @staticmethod
    def _chunk(request: Request, budget: int) -> Row:
        count = min(_num_computable(request), budget)
        last = request.num_computed + count == request.num_tokens
        return Row(request, request.num_computed, count, samples=last and not request.score)

    @staticmethod
    def _advance(row: Row) -> None:
        row.request.num_computed += row.num_tokens
        if row.samples:
            row.request.num_pending += 1
            row.request.slot_has_token = True

    # -- changing state ------------------------------------------------------------------------

    def _enqueue(self, request: Request) -> None:
        request.status = Status.WAITING
        heapq.heappush(self._waiting, (request.order, request))
        self.num_waiting += 1

    def _preempt(self, request: Request) -> None:
        """Back to the queue, to be recomputed; a token of it in flight is still accepted."""
        self.num_preemptions += 1
        self._release(request)
        self._enqueue(request)

    def _release(self, request: Request) -> None:
        self.running.remove(request)
        self.blocks.release(request.block_ids)
        assert request.slot is not None
        self._free_slots.append(request.slot)
        request.block_ids, request.slot = [], None
        request.num_computed, request.slot_has_token = 0, False

    def _finish(
        self, request: Request, reason: FinishReason, stop_reason: int | str | None = None
    ) -> None:
        if request.status is Status.RUNNING:
            self._release(request)
        elif request.status is Status.WAITING:
            self.num_waiting -= 1
        request.status = Status.FINISHED
        request.finish_reason, request.stop_reason = reason, stop_reason

    def _stop_if_done(self, request: Request, token: int) -> None:
        if token in request.eos_ids:
            self._finish(request, "stop")
        elif token in request.stop_ids:
            self._finish(request, "stop", token)
        elif len(request.tokens) >= request.max_len:
            self._finish(request, "length")


def _num_computable(request: Request) -> int:
    """Tokens that may be computed now; nothing asks for what follows a scored text's last one."""
    return request.num_uncomputed - int(request.score)
