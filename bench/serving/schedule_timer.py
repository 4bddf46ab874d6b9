"""Host time of scheduling a step, by the number of waiting requests."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from pagedjax import Engine
from pagedjax.schedule.plan import Plan

Sample = tuple[int, float]  # requests waiting before the call, and its milliseconds


class ScheduleTimer:
    """Context manager that times every `schedule` of an engine's scheduler."""

    def __init__(self, engine: Engine) -> None:
        self.samples: list[Sample] = []
        self._scheduler: Any = engine.scheduler
        self._schedule = engine.scheduler.schedule

    def __enter__(self) -> ScheduleTimer:
        self._scheduler.schedule = self._timed
        return self

    def __exit__(self, *_: object) -> None:
        del self._scheduler.schedule  # uncovers the method of the class

    def _timed(self) -> Plan:
        waiting, start = self._scheduler.num_waiting, time.perf_counter()
        plan = self._schedule()
        self.samples.append((waiting, 1e3 * (time.perf_counter() - start)))
        return plan


def by_waiting(samples: Sequence[Sample]) -> list[dict[str, float]]:
    """Return median and maximum ms of steps with 0, 1, 2 to 3, 4 to 7, ... waiting requests."""
    groups: dict[int, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample[0].bit_length(), []).append(sample)
    return [
        {
            "waiting": statistics.median(waiting for waiting, _ in group),
            "median_ms": round(statistics.median(ms for _, ms in group), 4),
            "max_ms": round(max(ms for _, ms in group), 4),
            "steps": len(group),
        }
        for _, group in sorted(groups.items())
    ]
