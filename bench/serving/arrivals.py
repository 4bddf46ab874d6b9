"""Arrival times of requests: a Poisson process, deterministic for each rate."""

from __future__ import annotations

import random

from bench.serving.workload import SEED


def poisson(rate: float, count: int) -> list[float]:
    """Return the seconds of `count` arrivals at `rate` requests per second.

    All rates scale the same draws, so that results at two rates differ by the rate alone.
    """
    if rate <= 0:
        raise ValueError(f"the rate is {rate}, but must be above 0")
    rng, now, seconds = random.Random(SEED), 0.0, []
    for _ in range(count):
        now += rng.expovariate(1.0) / rate
        seconds.append(now)
    return seconds
