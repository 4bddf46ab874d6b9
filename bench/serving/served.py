"""Token times of served requests, and statistics of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True)
class Served:
    """One request.

    times: seconds at which tokens came, on the same clock as `arrival`; tokens that came together
        have one entry.
    """

    arrival: float
    times: tuple[float, ...]
    num_tokens: int

    @property
    def first_token_s(self) -> float:
        """Seconds from its arrival to its first token."""
        return self.times[0] - self.arrival

    @property
    def per_token_ms(self) -> float:
        """Mean milliseconds between two tokens; needs at least two tokens."""
        return 1e3 * (self.times[-1] - self.times[0]) / (self.num_tokens - 1)


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return median, 90th and 99th percentile and maximum, rounded."""
    named = {"median": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(float(np.quantile(values, at)), 4) for name, at in named.items()}


def first_token_s(requests: Sequence[Served]) -> list[float]:
    """Return `Served.first_token_s` of each request, in ascending order."""
    return sorted(each.first_token_s for each in requests)


def per_token_ms(requests: Sequence[Served]) -> list[float]:
    """Return `Served.per_token_ms` of requests with at least two tokens, in ascending order."""
    return sorted(each.per_token_ms for each in requests if each.num_tokens > 1)


def between_tokens_ms(requests: Sequence[Served]) -> list[float]:
    """Return the times between two tokens of all requests, in ascending order."""
    return sorted(
        1e3 * (after - before) for each in requests for before, after in pairwise(each.times)
    )


def tokens_per_second(requests: Sequence[Served]) -> float:
    """Return the rate of all tokens from the first arrival to the last token."""
    start, end = min(each.arrival for each in requests), max(each.times[-1] for each in requests)
    return sum(each.num_tokens for each in requests) / (end - start)
