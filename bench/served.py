"""When a request that arrived had its tokens, and what many of them say together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Served:
    """One request. arrival, first, last: seconds on one clock, of the tokens `first` and `last`."""

    arrival: float
    first: float
    last: float
    num_tokens: int

    @property
    def first_token_s(self) -> float:
        """Seconds from its arrival to its first token."""
        return self.first - self.arrival

    @property
    def per_token_ms(self) -> float:
        """Milliseconds from a token to the next, on average; of two tokens and more."""
        return 1e3 * (self.last - self.first) / (self.num_tokens - 1)


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


def tokens_per_second(requests: Sequence[Served]) -> float:
    """Tokens of all from the first arrival to the last token."""
    start, end = min(each.arrival for each in requests), max(each.last for each in requests)
    return sum(each.num_tokens for each in requests) / (end - start)
