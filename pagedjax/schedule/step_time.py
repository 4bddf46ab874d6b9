"""Host time and waiting time of steps, and how much of the host time the device sat idle."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StepTime:
    """Adds up seconds spent within `step`; time outside is not counted.

    host_s: seconds of host work; wait_s: seconds of waiting for tokens. exposed_s: the part of
    host_s in which the device may have been idle. Idleness can only be seen when the next step is
    dispatched: if everything in flight has ended by then, all host work since the last wait counts
    as exposed, although the device became idle at some moment within it.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last: float | None = None  # time is accounted for up to this moment
        self._since_wait = 0.0
        self.host_s = self.wait_s = self.exposed_s = 0.0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time one whole step."""
        self._last = self._clock()
        try:
            yield
        finally:
            self._work()
            self._last = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time a wait for the device."""
        if self._last is None:
            yield
            return
        self._work()
        try:
            yield
        finally:
            self.wait_s += self._passed()
            self._since_wait = 0.0

    def dispatch(self, device_is_idle: bool) -> None:
        """Record that a step was dispatched; `device_is_idle`: nothing was running before it."""
        self._work()
        if device_is_idle:
            self.exposed_s += self._since_wait
        self._since_wait = 0.0

    def _work(self) -> None:
        """Count the time since the last event as host work."""
        passed = self._passed()
        self.host_s += passed
        self._since_wait += passed

    def _passed(self) -> float:
        if self._last is None:
            return 0.0
        before, self._last = self._last, self._clock()
        return self._last - before
