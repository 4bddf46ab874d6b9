"""The waiting queue: requests without a slot, in the order in which they will be admitted."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from pagedjax.schedule.request import Request, Status


class WaitingQueue:
    """A priority queue by `Request.order`. Adding and removing cost O(log n).

    A request that ends while it waits stays in the heap until it reaches the front; `len` counts
    only requests that still wait.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int, int], Request]] = []
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Request]:
        """All requests of the heap in no order, those that ended included."""
        return (request for _, request in self._heap)

    def add(self, request: Request) -> None:
        """Queue a request."""
        request.status = Status.WAITING
        heapq.heappush(self._heap, (request.order, request))
        self._num_waiting += 1

    def discard_ended(self) -> None:
        """Count one waiting request less: the caller marks it as finished."""
        self._num_waiting -= 1

    def first(self) -> Request | None:
        """Return the request to admit next, or None.

        Requests with nothing to compute leave the queue: those that ended, and those that a step
        in flight gave their candidates, which wait for their next token.
        """
        while self._heap and self._heap[0][1].is_idle:
            request = heapq.heappop(self._heap)[1]
            if not request.is_finished:
                request.status = Status.HELD
                self._num_waiting -= 1
        return self._heap[0][1] if self._heap else None

    def pop(self) -> None:
        """Remove the request that `first` returned."""
        heapq.heappop(self._heap)
        self._num_waiting -= 1

    def check(self) -> None:
        """Raise AssertionError unless the count is right and no waiting request holds blocks."""
        for request in self:
            assert request.is_finished or not request.block_ids, "a waiting request holds blocks"
        alive = sum(not request.is_finished for request in self)
        assert alive == len(self), "the waiting count is wrong"
