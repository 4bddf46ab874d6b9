"""When a request that arrived had its tokens, and what many of them say together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True)
class Served:
    """One request. times: seconds at which its tokens came, on the clock of its arrival; one second
    where several came at once.
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
        """Milliseconds from a token to the next, on average; of two tokens and more."""
        return 1e3 * (self.times[-1] - self.times[0]) / (self.num_tokens - 1)


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Median, 90th and 99th percentile and the largest, rounded."""
    named = {"median": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(float(np.quantile(values, at)), 4) for name, at in named.items()}


def first_token_s(requests: Sequence[Served]) -> list[float]:
    """That of each, from the shortest."""
    return sorted(each.first_token_s for each in requests)


def per_token_ms(requests: Sequence[Served]) -> list[float]:
    """That of each which has two tokens and more, from the shortest."""
    return sorted(each.per_token_ms for each in requests if each.num_tokens > 1)


def between_tokens_ms(requests: Sequence[Served]) -> list[float]:
    """Each wait for a further token, of all requests together, from the shortest."""
    return sorted(
        1e3 * (after - before) for each in requests for before, after in pairwise(each.times)
    )


def tokens_per_second(requests: Sequence[Served]) -> float:
    """Tokens of all from the first arrival to the last token."""
    start, end = min(each.arrival for each in requests), max(each.times[-1] for each in requests)
    return sum(each.num_tokens for each in requests) / (end - start)
