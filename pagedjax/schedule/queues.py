"""Where live requests are: the waiting queue and the running list, and the moves between them."""

from __future__ import annotations

import bisect

from pagedjax.outputs import FinishReason
from pagedjax.schedule.blocks import BlockPool
from pagedjax.schedule.holdings import Holdings
from pagedjax.schedule.request import Request, Status
from pagedjax.schedule.waiting import WaitingQueue


class Queues:
    """Moves requests between waiting, running, held and finished. The scheduler decides when.

    running: ordered by `Request.order`; only these hold slots and blocks.
    """

    def __init__(self, blocks: BlockPool, num_slots: int, prefix_caching: bool) -> None:
        self.blocks = blocks
        self.holdings = Holdings(blocks, num_slots, prefix_caching)
        self.running: list[Request] = []
        self.waiting = WaitingQueue()
        self.num_preemptions = 0

    def admit(self, spare_blocks: int) -> Request | None:
        """Start the first waiting request, with the blocks of all its known tokens.

        None if there is none, or no slot, or fewer than `spare_blocks` blocks would stay available.
        """
        request = self.waiting.first()
        if request is None or not self.holdings.free_slots:
            return None
        if request.num_pending:  # it would be recomputed without the token in flight
            return None
        if not self.holdings.start(request, spare_blocks):
            return None
        self.waiting.pop()
        self._run(request)
        return request

    def join(self, child: Request, parent: Request, num_computed: int) -> bool:
        """Start `child` on the blocks of the parent's first `num_computed` tokens.

        Without a free slot the child is queued instead, and the result is False.
        """
        if not self.holdings.free_slots:
            self.waiting.add(child)
            return False
        self.holdings.join(child, parent, num_computed)
        self._run(child)
        return True

    def preempt(self, request: Request) -> None:
        """Return a request to the queue, to be recomputed; its token in flight is still accepted.

        A ranked request waits outside the queue for its next token, and is recomputed with it.
        """
        self._release(request)
        if request.candidates is not None:
            request.status = Status.HELD
            return
        self.num_preemptions += 1
        self.waiting.add(request)

    def park_ranked(self) -> bool:
        """Take slots and blocks from requests that have their candidates and wait for others."""
        ranked = [request for request in self.running if request.candidates is not None]
        for request in ranked:
            self.preempt(request)  # which does not queue a ranked request
        return bool(ranked)

    def finish(
        self, request: Request, reason: FinishReason, stop_reason: int | str | None = None
    ) -> None:
        """End a request and take back what it holds; replaces the reason of one that has ended."""
        if request.status is Status.RUNNING:
            self._release(request)
        elif request.status is Status.WAITING:
            self.waiting.discard_ended()
        request.status = Status.FINISHED
        request.finish_reason, request.stop_reason = reason, stop_reason

    def check(self) -> None:
        """Raise AssertionError unless blocks, slots and queues agree with each other."""
        self.blocks.check(request.block_ids for request in self.running)
        slots = [request.slot for request in self.running] + self.holdings.free_slots
        assert len(set(slots)) == len(slots), "a slot is owned twice"
        self.waiting.check()

    def _run(self, request: Request) -> None:
        request.status = Status.RUNNING
        bisect.insort(self.running, request, key=lambda each: each.order)

    def _release(self, request: Request) -> None:
        self.running.remove(request)
        self.holdings.release(request)
