"""Log probabilities for those who ask for them instead of tokens: of given texts, and of the
most likely next tokens."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pagedjax.plan import Plan
from pagedjax.request import Request


class Scores:
    """One float32 array of length len(tokens) - 1 for each request in hand."""

    def __init__(self) -> None:
        self._arrays: dict[Request, np.ndarray] = {}

    def open(self, requests: Iterable[Request]) -> None:
        """Make room for the scores of `requests`."""
        for request in requests:
            self._arrays[request] = np.zeros(len(request.tokens) - 1, np.float32)

    def keep(self, plan: Plan, scores: np.ndarray) -> None:
        """Take the scores of a step's chunks, [Sp]; those of requests not in hand are dropped."""
        first = 0
        for row in plan.chunks:
            if row.request in self._arrays:
                kept = self._arrays[row.request]
                kept[row.start : row.end] = scores[first : first + row.num_tokens]
            first += row.num_tokens

    def close(self, requests: Iterable[Request]) -> list[np.ndarray]:
        """Hand the arrays over."""
        return [self._arrays.pop(request) for request in requests]


def keep_candidates(plan: Plan, ids: np.ndarray, logprobs: np.ndarray) -> None:
    """Hand each request that asked for them its most likely next tokens; arrays are [R, count]."""
    for index, request in enumerate(plan.samplers):
        if request.num_candidates:
            best = zip(ids[index].tolist(), logprobs[index].tolist(), strict=True)
            request.candidates = list(best)[: request.num_candidates]
