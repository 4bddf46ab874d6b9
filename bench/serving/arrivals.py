"""When requests arrive: a Poisson process, always the same for a rate."""

from __future__ import annotations

import random

from bench.serving.workload import SEED


def poisson(rate: float, count: int) -> list[float]:
    """Seconds of `count` arrivals at `rate` requests a second.

    Other rates stretch the same draws, so what is compared between rates is the rate.
    """
    if rate <= 0:
        raise ValueError(f"a rate must be above 0, and {rate} is not")
    rng, now, seconds = random.Random(SEED), 0.0, []
    for _ in range(count):
        now += rng.expovariate(1.0) / rate
        seconds.append(now)
    return seconds
