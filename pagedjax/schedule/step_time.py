"""How the host's time and the device's lie beside each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StepTime:
    """Adds up seconds within `step`; what is called outside of it counts for nothing.

    host_s: of work; wait_s: of waiting for tokens. exposed_s: the part of host_s in which the
    device may have been idle. Whether it was is only seen when the next step is dispatched: if
    everything in flight has ended by then, all the work since the last wait counts as exposed,
    although the device ended at some moment within it.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last: float | None = None  # the moment up to which time is accounted for
        self._since_wait = 0.0
        self.host_s = self.wait_s = self.exposed_s = 0.0

    @contextmanager
    def step(self) -> Iterator[None]:
        """The whole of one step."""
        self._last = self._clock()
        try:
            yield
        finally:
            self._work()
            self._last = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The host waits for the device."""
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
        """A step has just gone to the device, which was idle until then or was not."""
        self._work()
        if device_is_idle:
            self.exposed_s += self._since_wait
        self._since_wait = 0.0

    def _work(self) -> None:
        """What has passed since the last event was work."""
        passed = self._passed()
        self.host_s += passed
        self._since_wait += passed

    def _passed(self) -> float:
        if self._last is None:
            return 0.0
        before, self._last = self._last, self._clock()
        return self._last - before
