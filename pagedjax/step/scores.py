"""Hand log probabilities from the device to the requests that asked for them: of scored texts,
sampled tokens, prompts and the most likely next tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from pagedjax.sample.logprobs import TokenLogprobs
from pagedjax.schedule.plan import Plan
from pagedjax.schedule.request import Candidates, Request

# JSON has no infinity: tokens that cannot be drawn are reported with this log probability.
LEAST_LOGPROB = -9999.0


class ScoredArrays(NamedTuple):
    """Scores of several texts as device arrays, ready for a loss; padded to the longest text.

    logprobs[b, i] belongs to tokens[b, i + 1]; mask[b, i] is True if that token exists.
    """

    tokens: jax.Array  # [B, X] int32
    logprobs: jax.Array  # [B, X - 1] float32; 0 where not masked
    mask: jax.Array  # [B, X - 1] bool


class Scores:
    """One float32 array of length len(tokens) - 1 per open request; NaN where not yet known."""

    def __init__(self) -> None:
        self._arrays: dict[Request, np.ndarray] = {}

    def open(self, requests: Iterable[Request]) -> None:
        """Allocate the scores of `requests`."""
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
        """Read a step's results and hand them to the requests; call before `commit`."""
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
        """Store the scores of a step's chunks, [Sp]; those of requests not open are dropped."""
        first = 0
        for row in plan.chunks:
            if row.request in self._arrays:
                kept = self._arrays[row.request]
                kept[row.start : row.end] = scores[first : first + row.num_tokens]
            first += row.num_tokens

    def close(self, requests: Iterable[Request], block_size: int) -> list[np.ndarray]:
        """Remove and return the arrays.

        A text that shares a prefix with another reused that text's blocks without computing scores,
        so their scores are copied here.
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
    """The scores of each text's full blocks, each with a number that identifies all tokens up to
    and including the one after the block, which the block's last score belongs to.

    A number is determined by its predecessor and the block, so long texts need no long keys.
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
    """Store the most likely next tokens in each request that needs them; arrays are [R, count].

    A request that has gained a token since, as after a preemption, needs those of its new end.
    """
    drawn = ((row.end, request) for row in plan.rows for request in row.samples)
    for index, (end, request) in enumerate(drawn):
        if request.num_candidates and end == len(request.tokens):
            best = zip(ids[index].tolist(), logprobs[index].tolist(), strict=True)
            request.candidates = list(best)[: request.num_candidates]


def _keep_token_logprobs(plan: Plan, tokens: list[int], found: Any) -> None:
    """Store the log probabilities of the tokens in a step's samplers; call before `commit`."""
    for index, (request, token) in enumerate(zip(plan.samplers, tokens, strict=True)):
        if request.params.logprobs is not None and not request.is_finished:
            del request.token_logprobs[request.num_output :]  # of rolled-back tokens
            request.token_logprobs.append(_candidates(token, found, index, request.params.logprobs))


def _keep_prompt_logprobs(plan: Plan, found: Any) -> None:
    """Store the log probabilities of prompt tokens in the requests of a step's chunks."""
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
    """The scores of the requests' tokens as padded arrays on `device`."""
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
    """Convert the arrays to lists, since reading single numbers from arrays takes several times as
    long."""
    return jax.tree.map(lambda each: np.asarray(each).tolist(), found)


def _candidates(token: int, found: Any, index: int, count: int) -> Candidates:
    best = zip(found.ids[index][:count], found.logprobs[index][:count], strict=True)
    return Candidates(
        token=token,
        logprob=max(found.logprob[index], LEAST_LOGPROB),
        rank=found.rank[index],
        best=tuple((each, max(logprob, LEAST_LOGPROB)) for each, logprob in best),
    )
