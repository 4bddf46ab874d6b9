"""Log probabilities from the device to those who asked for them: of given texts, of sampled
tokens, of prompts, and of the most likely next tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from pagedjax.sample.logprobs import TokenLogprobs
from pagedjax.schedule.plan import Plan
from pagedjax.schedule.request import Candidates, Request

# JSON knows no infinity: a token that could not be drawn is reported with this log probability.
LEAST_LOGPROB = -9999.0


class ScoredArrays(NamedTuple):
    """Scores of several texts as device arrays, ready for a loss; padded to the longest text.

    logprobs[b, i] is of tokens[b, i + 1]; mask[b, i] tells whether there is such a token.
    """

    tokens: jax.Array  # [B, X] int32
    logprobs: jax.Array  # [B, X - 1] float32; 0 where not masked
    mask: jax.Array  # [B, X - 1] bool


class Scores:
    """One float32 array of length len(tokens) - 1 for each request in hand; NaN where unknown."""

    def __init__(self) -> None:
        self._arrays: dict[Request, np.ndarray] = {}

    def open(self, requests: Iterable[Request]) -> None:
        """Make room for the scores of `requests`."""
        for request in requests:
            self._arrays[request] = np.full(len(request.tokens) - 1, np.nan, np.float32)

    def take(
        self,
        plan: Plan,
        tokens: list[int],  # of the plan's samplers
        logprobs: TokenLogprobs | None,  # of the samplers' rows
        scores: TokenLogprobs | None,  # of the chunks' tokens
        ranked: tuple[jax.Array, jax.Array] | None,  # ids and log probabilities, [R, count]
    ) -> None:
        """Read what a step found out and hand it to the requests, before their `commit`."""
        wants_logprobs = (each.params.logprobs is not None for each in plan.samplers)
        if logprobs is not None and any(wants_logprobs):
            _keep_token_logprobs(plan, tokens, _listed(logprobs))
        if scores is not None:
            self._keep(plan, np.asarray(scores.logprob))
            if any(row.request.lists_prompt for row in plan.chunks):
                _keep_prompt_logprobs(plan, _listed(scores))
        if ranked is not None:
            _keep_candidates(plan, *map(np.asarray, ranked))

    def _keep(self, plan: Plan, scores: np.ndarray) -> None:
        """Take the scores of a step's chunks, [Sp]; those of requests not in hand are dropped."""
        first = 0
        for row in plan.chunks:
            if row.request in self._arrays:
                kept = self._arrays[row.request]
                kept[row.start : row.end] = scores[first : first + row.num_tokens]
            first += row.num_tokens

    def close(self, requests: Iterable[Request], block_size: int) -> list[np.ndarray]:
        """Hand the arrays over.

        A text that began like another took that one's keys for whole blocks, and takes the scores
        of these blocks here.
        """
        found = [(request.tokens, self._arrays.pop(request)) for request in requests]
        known: dict[int, np.ndarray] = {}
        blocks = [each for one in _numbered(found, block_size) for each in one]
        for prefix, block in blocks:
            if not np.isnan(block).any():
                known.setdefault(prefix, block)
        for prefix, block in blocks:
            missing = np.isnan(block)
            if missing.any() and prefix in known:
                block[missing] = known[prefix][missing]
        return [scores for _, scores in found]


def _numbered(
    texts: Iterable[tuple[list[int], np.ndarray]], block_size: int
) -> Iterator[list[tuple[int, np.ndarray]]]:
    """The scores of each text's full blocks, with a number that stands for all tokens up to the one
    after the block: that block's last score is about it.

    A number is made from the one before and the block alone, so long texts need no long keys.
    """
    numbers: dict[tuple[int, ...], int] = {}
    for tokens, scores in texts:
        number, blocks = 0, []
        for end in range(block_size, len(tokens), block_size):
            key = (number, *tokens[end - block_size : end + 1])
            number = numbers.setdefault(key, len(numbers) + 1)
            blocks.append((number, scores[end - block_size : end]))
        yield blocks


def _keep_candidates(plan: Plan, ids: np.ndarray, logprobs: np.ndarray) -> None:
    """Hand each request that asked for them its most likely next tokens; arrays are [R, count].

    One that was given a token since then, as after a preemption, needs those of its new end.
    """
    drawn = ((row.end, request) for row in plan.rows for request in row.samples)
    for index, (end, request) in enumerate(drawn):
        if request.num_candidates and end == len(request.tokens):
            best = zip(ids[index].tolist(), logprobs[index].tolist(), strict=True)
            request.candidates = list(best)[: request.num_candidates]


def _keep_token_logprobs(plan: Plan, tokens: list[int], found: Any) -> None:
    """Hand the samplers of a step the log probabilities of their tokens; call before `commit`."""
    for index, (request, token) in enumerate(zip(plan.samplers, tokens, strict=True)):
        if request.params.logprobs is not None and not request.is_finished:
            del request.token_logprobs[request.num_output :]  # of tokens rolled back
            request.token_logprobs.append(_candidates(token, found, index, request.params.logprobs))


def _keep_prompt_logprobs(plan: Plan, found: Any) -> None:
    """Hand the prompts of a step's chunks the log probabilities of their tokens."""
    first = 0
    for row in plan.chunks:
        request = row.request
        count = request.params.prompt_logprobs
        if count is not None and request.lists_prompt:
            known = len(request.prompt_logprobs)
            assert row.start <= known, "tokens without scores are never taken from the prefix cache"
            for place in range(known, min(row.end, request.num_prompt - 1)):
                token = request.tokens[place + 1]
                index = first + place - row.start
                request.prompt_logprobs.append(_candidates(token, found, index, count))
        first += row.num_tokens


def score_arrays(
    requests: Sequence[Request], scores: list[np.ndarray], device: jax.Device
) -> ScoredArrays:
    """The scores of the requests' tokens side by side, on `device`."""
    token_lists = [request.tokens for request in requests]
    longest = max((len(tokens) for tokens in token_lists), default=1)
    tokens = np.zeros((len(token_lists), longest), np.int32)
    logprobs = np.zeros((len(token_lists), longest - 1), np.float32)
    for row, (ids, found) in enumerate(zip(token_lists, scores, strict=True)):
        tokens[row, : len(ids)] = ids
        logprobs[row, : len(found)] = found
    lengths = np.array([len(ids) for ids in token_lists], np.int32)
    mask = np.arange(longest - 1, dtype=np.int32)[None] < lengths[:, None] - 1
    return ScoredArrays(*jax.device_put((tokens, logprobs, mask), device))


def _listed(found: TokenLogprobs) -> Any:
    """The same with lists: numbers are read one by one, which takes several times as long with
    arrays."""
    return jax.tree.map(lambda each: np.asarray(each).tolist(), found)


def _candidates(token: int, found: Any, index: int, count: int) -> Candidates:
    best = zip(found.ids[index][:count], found.logprobs[index][:count], strict=True)
    return Candidates(
        token=token,
        logprob=max(found.logprob[index], LEAST_LOGPROB),
        rank=found.rank[index],
        best=tuple((each, max(logprob, LEAST_LOGPROB)) for each, logprob in best),
    )
