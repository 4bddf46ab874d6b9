"""Distributions of prompt and output lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

MAX_SEQ_LEN = 2048
CHUNK = 1024  # requests drawn at once
SAMPLE = 400_000  # requests drawn to estimate a mix's means


Lengths = tuple[np.ndarray, np.ndarray]  # prompt lengths, output lengths


class RequestMix(Protocol):
    """A distribution of (prompt tokens, output tokens) with a sum of at most MAX_SEQ_LEN."""

    @property
    def name(self) -> str:
        """Name in tables."""

    def draw(self, rng: np.random.Generator, count: int) -> Lengths:
        """Draw prompt and output lengths, all at least 1, of about `count` requests."""


@dataclass(frozen=True)
class UniformMix:
    """The sum of prompt and output is uniform, and so is the prompt's share of it."""

    name: str = "uniform"
    shortest: int = 16
    longest: int = MAX_SEQ_LEN

    def draw(self, rng: np.random.Generator, count: int) -> Lengths:
        """Draw prompt and output lengths of `count` requests."""
        total = rng.integers(self.shortest, self.longest + 1, count)
        prompt = rng.integers(1, total)
        return prompt, total - prompt


@dataclass(frozen=True)
class LogNormalMix:
    """Prompt and output are independent log-normals, drawn again if they exceed `longest`.

    Each `mu` is chosen such that the means, after redrawing and rounding, are those that
    arXiv 2309.06180 gives for its datasets; it gives no spread. With a sigma of 1, the standard
    deviation is 1.3 times the mean and the median 0.6 times the mean.
    """

    name: str
    prompt_mu: float
    output_mu: float
    prompt_sigma: float = 1.0
    output_sigma: float = 1.0
    longest: int = MAX_SEQ_LEN

    def draw(self, rng: np.random.Generator, count: int) -> Lengths:
        """Draw prompt and output lengths of at most `count` requests."""
        prompt = _whole(rng.lognormal(self.prompt_mu, self.prompt_sigma, count))
        output = _whole(rng.lognormal(self.output_mu, self.output_sigma, count))
        fits = prompt + output <= self.longest
        return prompt[fits], output[fits]


@dataclass(frozen=True)
class Moments:
    """Mean lengths of a mix.

    running_len: mean number of stored keys of a running request, over all steps of all requests,
        so that requests that run longer have more weight.
    """

    prompt_len: float
    output_len: float
    running_len: float


def stream(mix: RequestMix, seed: int) -> Iterator[tuple[int, int]]:
    """Yield endless requests as (prompt tokens, output tokens), deterministic for each seed."""
    rng = np.random.default_rng(seed)
    while True:
        prompt, output = mix.draw(rng, CHUNK)
        yield from zip(prompt.tolist(), output.tolist(), strict=True)


def sample(mix: RequestMix) -> Lengths:
    """Draw SAMPLE requests, enough for accurate means; always the same ones."""
    return mix.draw(np.random.default_rng(0), SAMPLE)


def moments(mix: RequestMix) -> Moments:
    """Estimate the means of the mix.

    The first step of a request with p prompt and o output tokens stores p keys, and each of the
    o - 1 further steps one more: o steps with p + (o - 1) / 2 keys on average.
    """
    prompt, output = sample(mix)
    running = (output * (prompt + (output - 1) / 2)).sum() / output.sum()
    return Moments(float(prompt.mean()), float(output.mean()), float(running))


def narrowed(mix: LogNormalMix, output_sigma: float) -> LogNormalMix:
    """Return the mix with another sigma but the same mean of outputs, except for redraws."""
    shift = (mix.output_sigma**2 - output_sigma**2) / 2
    return replace(mix, output_mu=mix.output_mu + shift, output_sigma=output_sigma)


def describe(mix: RequestMix) -> dict[str, Any]:
    """Return parameters and means as values for JSON."""
    found = moments(mix)
    means = {name: round(value, 2) for name, value in vars(found).items()}
    return {"parameters": dict(vars(mix)), "means": means}


def _whole(lengths: np.ndarray) -> np.ndarray:
    return np.maximum(1, np.rint(lengths)).astype(np.int64)


UNIFORM = UniformMix()
ALPACA = LogNormalMix("19/58, like Alpaca", prompt_mu=2.4445, output_mu=3.5622)
SHAREGPT = LogNormalMix("161/338, like ShareGPT", prompt_mu=4.6215, output_mu=5.4565)
MIXES: tuple[RequestMix, ...] = (UNIFORM, ALPACA, SHAREGPT)
