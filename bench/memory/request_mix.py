"""Mixes of request lengths: what a memory manager has to deal with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

MAX_SEQ_LEN = 2048
CHUNK = 1024  # requests drawn at a time
SAMPLE = 400_000  # requests drawn to know a mix's moments


Lengths = tuple[np.ndarray, np.ndarray]  # of the prompts, and of the outputs


class RequestMix(Protocol):
    """A distribution of (prompt tokens, output tokens), their sum at most MAX_SEQ_LEN."""

    @property
    def name(self) -> str:
        """How tables call it."""

    def draw(self, rng: np.random.Generator, count: int) -> Lengths:
        """Prompt and output lengths of about `count` requests, all at least 1."""


@dataclass(frozen=True)
class UniformMix:
    """The sum of prompt and output is uniform, and so is the prompt's part of it."""

    name: str = "uniform"
    shortest: int = 16
    longest: int = MAX_SEQ_LEN

    def draw(self, rng: np.random.Generator, count: int) -> Lengths:
        """Prompt and output lengths of `count` requests."""
        total = rng.integers(self.shortest, self.longest + 1, count)
        prompt = rng.integers(1, total)
        return prompt, total - prompt


@dataclass(frozen=True)
class LogNormalMix:
    """Prompt and output are independent log-normals, drawn again where they exceed `longest`.

    The `mu` are set such that the means come out as wanted after that and after rounding. The
    means are the ones that arXiv 2309.06180 gives for its datasets; it gives no spread. A sigma
    of 1 makes the spread 1.3 times the mean, with a median at 0.6 of it.
    """

    name: str
    prompt_mu: float
    output_mu: float
    prompt_sigma: float = 1.0
    output_sigma: float = 1.0
    longest: int = MAX_SEQ_LEN

    def draw(self, rng: np.random.Generator, count: int) -> Lengths:
        """Prompt and output lengths of at most `count` requests."""
        prompt = _whole(rng.lognormal(self.prompt_mu, self.prompt_sigma, count))
        output = _whole(rng.lognormal(self.output_mu, self.output_sigma, count))
        fits = prompt + output <= self.longest
        return prompt[fits], output[fits]


@dataclass(frozen=True)
class Moments:
    """What a mix's lengths are on average.

    running_len: mean number of keys that a running request has stored. Requests that run longer
        count for more: it is the mean over all steps of all requests.
    """

    prompt_len: float
    output_len: float
    running_len: float


def stream(mix: RequestMix, seed: int) -> Iterator[tuple[int, int]]:
    """Endless requests, as (prompt tokens, output tokens); the same ones for the same seed."""
    rng = np.random.default_rng(seed)
    while True:
        prompt, output = mix.draw(rng, CHUNK)
        yield from zip(prompt.tolist(), output.tolist(), strict=True)


def sample(mix: RequestMix) -> Lengths:
    """So many requests that their means are hardly random; always the same ones."""
    return mix.draw(np.random.default_rng(0), SAMPLE)


def moments(mix: RequestMix) -> Moments:
    """The mix's own means.

    Of a request of p prompt tokens and o output tokens, the first step stores p keys and each of
    the o - 1 that follow one more: o steps, p + (o - 1) / 2 keys on average.
    """
    prompt, output = sample(mix)
    running = (output * (prompt + (output - 1) / 2)).sum() / output.sum()
    return Moments(float(prompt.mean()), float(output.mean()), float(running))


def narrowed(mix: LogNormalMix, output_sigma: float) -> LogNormalMix:
    """The same mix with outputs of the same mean, closer to it (but for the few drawn again)."""
    shift = (mix.output_sigma**2 - output_sigma**2) / 2
    return replace(mix, output_mu=mix.output_mu + shift, output_sigma=output_sigma)


def describe(mix: RequestMix) -> dict[str, Any]:
    """Parameters and moments, as values that JSON can hold."""
    found = moments(mix)
    means = {name: round(value, 2) for name, value in vars(found).items()}
    return {"parameters": dict(vars(mix)), "means": means}


def _whole(lengths: np.ndarray) -> np.ndarray:
    return np.maximum(1, np.rint(lengths)).astype(np.int64)


UNIFORM = UniformMix()
ALPACA = LogNormalMix("19/58, like Alpaca", prompt_mu=2.4445, output_mu=3.5622)
SHAREGPT = LogNormalMix("161/338, like ShareGPT", prompt_mu=4.6215, output_mu=5.4565)
MIXES: tuple[RequestMix, ...] = (UNIFORM, ALPACA, SHAREGPT)
