"""A dispatched step and the results that the host will read."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from pagedjax.sample.logprobs import TokenLogprobs
from pagedjax.schedule.plan import Plan


class InFlight(NamedTuple):
    """A dispatched step whose results the host has not read yet.

    padded_tokens: number of tokens that it computes, including padding.
    last: an array that is ready once the whole step is done.
    """

    plan: Plan
    padded_tokens: int
    last: jax.Array
    tokens: jax.Array | None  # [R], beginning with those of plan.samplers
    scores: TokenLogprobs | None  # of Sp rows
    ranked: tuple[jax.Array, jax.Array] | None = None  # [R, count] ids and log probabilities
    logprobs: TokenLogprobs | None = None  # of the R drawn tokens

    @property
    def is_done(self) -> bool:
        """Whether the device has finished the step."""
        return self.last.is_ready()  # type: ignore[attr-defined]

    def wait(self) -> None:
        """Block until the device has finished the step."""
        self.last.block_until_ready()

    def read_tokens(self) -> list[int]:
        """The tokens drawn for plan.samplers."""
        count = len(self.plan.samplers)
        return [] if self.tokens is None else np.asarray(self.tokens)[:count].tolist()
