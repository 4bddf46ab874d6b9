"""A dispatched step, and what the host will read of it."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from pagedjax.sample.logprobs import TokenLogprobs
from pagedjax.schedule.plan import Plan


class InFlight(NamedTuple):
    """A dispatched step whose results the host has not read.

    padded_tokens: how many it computes, padding included. last: an array that is there once all
    the step is done.
    """

    plan: Plan
    padded_tokens: int
    last: jax.Array
    tokens: jax.Array | None  # [R], the first ones are those of plan.samplers
    scores: TokenLogprobs | None  # of Sp rows
    ranked: tuple[jax.Array, jax.Array] | None = None  # [R, count] ids and log probabilities
    logprobs: TokenLogprobs | None = None  # of the R tokens

    @property
    def is_done(self) -> bool:
        """Whether the device has ended it."""
        return self.last.is_ready()  # type: ignore[attr-defined]

    def wait(self) -> None:
        """Return when the device has ended it."""
        self.last.block_until_ready()

    def read_tokens(self) -> list[int]:
        """Those that plan.samplers drew."""
        count = len(self.plan.samplers)
        return [] if self.tokens is None else np.asarray(self.tokens)[:count].tolist()
