"""Simulation of a pool whose queue never empties, and the use of its memory at each step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from pagedjax.schedule.accounting import PoolAccounting, account
from pagedjax.schedule.blocks import BlockPool, watermark

WARM_UP = 5  # the first 1 / WARM_UP of the finished requests are not counted


@dataclass(eq=False)
class Live:
    """A running or preempted request. The key of its last token is never stored.

    known: tokens whose keys are stored at admission: the prompt, and after a preemption all tokens
    so far. stored: keys that are stored now. place: the memory that its manager allocated.
    """

    prompt_len: int
    output_len: int
    known: int = 0
    stored: int = 0
    place: list[int] = field(default_factory=list)

    @property
    def final_len(self) -> int:
        """Number of keys at its end."""
        return self.prompt_len + self.output_len - 1


class Manager(Protocol):
    """Allocates token slots for the keys of requests."""

    num_slots: int

    def admit(self, request: Live, others_run: bool) -> bool:
        """Allocate slots for the known tokens; return whether there was enough room."""

    def grow(self, request: Live) -> bool:
        """Allocate a slot for one more token; return whether there was enough room."""

    def release(self, request: Live) -> None:
        """Free all slots of the request."""

    def slots(self, request: Live) -> int:
        """Return the number of slots of the request."""

    def is_fragmented(self, request: Live) -> bool:
        """Return whether a rejected request would fit if the free slots were contiguous."""


@dataclass(frozen=True)
class SteadyState:
    """Means over the counted steps.

    These shares of the whole memory add up to 1: `stored` (keys), `reserved` (slots that their
    request fills later), `internal` (slots that their request never fills), `external` (free,
    enough for the next request, but fragmented) and `idle` (free, but not enough for the next
    request, or kept free). utilization: keys over allocated slots. preemptions: per finished
    request. recomputed: share of the written keys that were lost by preemption.
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
    """The engine's pool: blocks on demand, and the scheduler's watermark at admission."""

    def __init__(self, num_slots: int, block_size: int) -> None:
        self.num_slots = num_slots
        self.blocks = BlockPool(num_slots // block_size, block_size)
        self._watermark = watermark(self.blocks.num_blocks)

    def admit(self, request: Live, others_run: bool) -> bool:
        """Allocate blocks for the known tokens, if the watermark stays free."""
        need = self.blocks.blocks_for(request.known)
        if not self.blocks.can_allocate(need + (self._watermark if others_run else 0)):
            return False
        request.place = self.blocks.allocate(need)
        return True

    def grow(self, request: Live) -> bool:
        """Allocate a block if the last one is full."""
        if request.stored < self.slots(request):
            return True
        if not self.blocks.can_allocate(1):
            return False
        request.place += self.blocks.allocate(1)
        return True

    def release(self, request: Live) -> None:
        """Free all blocks."""
        self.blocks.release(request.place)
        request.place = []

    def slots(self, request: Live) -> int:
        """Return the slots of all its blocks."""
        return len(request.place) * self.blocks.block_size

    def is_fragmented(self, request: Live) -> bool:
        """Return False: any free blocks can be used."""
        return False

    def account(self, running: list[Live]) -> PoolAccounting:
        """Count the blocks and tokens of the running requests."""
        return account(self.blocks, ((each.place, each.stored) for each in running))


class Simulation:
    """Simulates steps of one token per running request; a prompt takes one step.

    The queue is first come, first served. If a request cannot grow, the newest is preempted: it
    returns to the head of the queue and is recomputed later.
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
        """Step until `num_requests` have finished; the first fifth of them is not counted."""
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
            return  # as in the scheduler: no admission in a step with a preemption
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
    """Sums over the steps of a simulation."""

    def __init__(self) -> None:
        self.steps = self.running = 0
        self.stored = self.reserved = self.internal = self.external = self.idle = 0

    def add(self, manager: Manager, running: list[Live], head: Live) -> None:
        """Add a step. Each slot is counted in exactly one sum."""
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
        """Return the means as shares."""
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
    """Return the share of allocated slots without a key, if lengths modulo T are uniform.

    The last block of a sequence then has 0 to T - 1 unused slots: (T - 1) / 2 on average.
    """
    unused = (block_size - 1) / 2
    return unused / (mean_len + unused)
