"""Contiguous KV memory: one piece per request, reserved at admission."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass

from bench.memory.request_mix import MAX_SEQ_LEN
from bench.memory.steady_state import Live


@dataclass(frozen=True)
class Reservation:
    """Rule for the slots of a request. size: final number of keys -> slots."""

    name: str
    size: Callable[[int], int]


RESERVATIONS = (
    Reservation(f"reserve {MAX_SEQ_LEN:,}", lambda final_len: MAX_SEQ_LEN),
    Reservation("next power of two", lambda final_len: 1 << (final_len - 1).bit_length()),
    Reservation("exact (oracle)", lambda final_len: final_len),
)


class Arena:
    """First-fit allocator of contiguous slots that merges adjacent holes.

    It favours the baseline over buddy allocation, which rounds up and merges only some neighbours.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_free = num_slots
        self._holes = [(0, num_slots)]  # (start, size) in ascending order; none are adjacent

    def take(self, size: int) -> int | None:
        """Allocate `size` slots and return their start; None if no hole is large enough."""
        for index, (start, room) in enumerate(self._holes):
            if room >= size:
                rest = [(start + size, room - size)] if room > size else []
                self._holes[index : index + 1] = rest
                self.num_free -= size
                return start
        return None

    def give(self, start: int, size: int) -> None:
        """Free a piece."""
        self.num_free += size
        index = bisect.bisect(self._holes, (start, 0))
        first, last = index, index
        if index and sum(self._holes[index - 1]) == start:
            first -= 1
            start, size = self._holes[first][0], self._holes[first][1] + size
        if index < len(self._holes) and self._holes[index][0] == start + size:
            last += 1
            size += self._holes[index][1]
        self._holes[first:last] = [(start, size)]

    @property
    def holes(self) -> list[tuple[int, int]]:
        """The free pieces as (start, size), in ascending order."""
        return list(self._holes)


class ContiguousManager:
    """Reserves all slots that a request may need, in one piece."""

    def __init__(self, num_slots: int, reservation: Reservation) -> None:
        self.num_slots = num_slots
        self.arena = Arena(num_slots)
        self._size = reservation.size

    def admit(self, request: Live, others_run: bool) -> bool:
        """Allocate the reservation, if a hole is large enough."""
        size = self._size(request.final_len)
        start = self.arena.take(size)
        if start is not None:
            request.place = [start, size]
        return start is not None

    def grow(self, request: Live) -> bool:
        """Return True: all slots are reserved."""
        return True

    def release(self, request: Live) -> None:
        """Free the reservation."""
        self.arena.give(*request.place)
        request.place = []

    def slots(self, request: Live) -> int:
        """Return the size of the reservation."""
        return request.place[1]

    def is_fragmented(self, request: Live) -> bool:
        """Return whether the holes together are large enough."""
        return self.arena.num_free >= self._size(request.final_len)
