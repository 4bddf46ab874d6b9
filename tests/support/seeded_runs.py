"""Sampling parameters with and without a seed, and an engine with room for every request."""

from __future__ import annotations

import dataclasses
from functools import cache

from pagedjax import Engine, SamplingParams
from tests.support.tiny_llama import make_engine

SEEDED = SamplingParams(temperature=1.0, seed=42, max_tokens=12, ignore_eos=True)
UNSEEDED = dataclasses.replace(SEEDED, seed=None, max_tokens=16)


@cache
def roomy() -> Engine:
    return make_engine(enable_prefix_caching=False)
