"""Test cases of the Triton kernels, for interpreting them and for compiling them without a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_kernels.tiles import H200, DecodeTiles, Device, decode_tiles
from tests.support.paged_pools import problem, queries, starts
from tests.support.pairwise import every, pairwise

KV_HEADS = 2
POOLS = ["float32", "bfloat16", "int8", "fp8"]  # one-byte pools have bfloat16 queries
ONE_BYTE = ("int8", "fp8")
# Largest difference relative to the largest value; float32 is without TF32.
TOLERANCE = {"float32": 5e-6, "bfloat16": 4e-3}
FACTORS: dict[str, list[Any]] = {
    "width": [64, 80, 96, 128, 256],
    "pool": POOLS,
    "size": [8, 16, 64, 256],
    "group": [1, 3, 4, 8],
    "window": [None, 40],
    "soft_cap": [None, 5.0],
}
SPLITS = ["one", "even", "fixed"]
FIXED = 64  # tokens of a fixed split


@dataclass(frozen=True)
class KernelCase:
    """One configuration of a kernel; only decode uses `splits`."""

    width: int
    pool: str
    size: int
    group: int
    window: int | None = None
    soft_cap: float | None = None
    splits: str = "one"

    def __str__(self) -> str:
        parts = [f"D{self.width}", self.pool, f"T{self.size}", f"G{self.group}", self.splits]
        parts += ["window"] if self.window else []
        return "-".join([*parts, "cap"] if self.soft_cap else parts)

    @property
    def dtype(self) -> str:
        """Data type of the queries."""
        return "bfloat16" if self.pool in ONE_BYTE else self.pool

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments that the op shares with the reference."""
        scale = self.width**-0.5
        return {"scale": scale, "window": self.window, "soft_cap": self.soft_cap}

    @property
    def lengths(self) -> list[int]:
        """Context lengths at the edges of a page, and one longer than any kernel block."""
        return [0, 1, self.size - 1, self.size, self.size + 1, 270]

    @property
    def counts(self) -> list[int]:
        """Number of queries of each row: none, one, some, or its whole context."""
        return [0, 1, self.size - 1, 1, min(5, self.size + 1), 37]

    def tiles(self, device: Device = H200) -> DecodeTiles:
        """Decode tiles with the case's kind of splits."""
        context = 4 * 270
        rows = {"one": 10_000, "even": 1, "fixed": 10_000}[self.splits]
        stored = jnp.uint8 if self.pool == "fp8" else jnp.dtype(self.pool)
        chosen = decode_tiles(rows, KV_HEADS, self.width, context, self.dtype, stored, device)
        assert (chosen.splits == 1) == (self.splits != "even")
        return chosen

    def decode_options(self) -> dict[str, Any]:
        """Keyword arguments that only `triton_decode.paged_decode` takes."""
        fixed = FIXED if self.splits == "fixed" else None
        return {"tiles": self.tiles(), "fixed_split_tokens": fixed}

    def arguments(self, *, ragged: bool) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Poisoned arguments of decode or, if `ragged`, prefill; and the scales, if any."""
        made = problem(self.lengths, KV_HEADS, self.size, self.width, seed=self.width)
        if self.window is not None:  # keys outside the window are poison too
            counts = self.counts if ragged else [1] * len(self.lengths)
            pairs = zip(self.lengths, counts, strict=True)
            made = made.forget([max(0, n - max(c, 1) + 1 - self.window) for n, c in pairs])
        arguments, scales = (
            made.quantise(self.pool) if self.pool in ONE_BYTE else (made.cast(self.pool), {})
        )
        heads = KV_HEADS * self.group
        tokens = sum(self.counts) + 4 if ragged else len(self.lengths)
        q = queries(tokens, heads, self.width, self.dtype, seed=self.group)
        return [q, *arguments, *([starts(self.counts)] if ragged else [])], scales


def decode_cases(*, full: bool) -> list[KernelCase]:
    """Every pair of values or, if `full`, every combination, cycling through the splits."""
    if not full:
        return [KernelCase(**each) for each in pairwise(FACTORS | {"splits": SPLITS})]
    pairs = zip(every(FACTORS), cycle(SPLITS), strict=False)
    return [KernelCase(**each, splits=splits) for each, splits in pairs]


def prefill_cases(*, full: bool) -> list[KernelCase]:
    """Every pair of values or, if `full`, every combination."""
    chosen = every(FACTORS) if full else pairwise(FACTORS)
    return [KernelCase(**each) for each in chosen]


def compiled_cases(*, full: bool) -> list[KernelCase]:
    """Cases to compile for GPUs; sizes (T only changes shifts) and splits are cycled through."""
    factors = {name: values for name, values in FACTORS.items() if name != "size"}
    chosen = every(factors) if full else pairwise(factors)
    sizes, splits = cycle(FACTORS["size"]), cycle(["even", "fixed", "one"])
    return [
        KernelCase(**each, size=size, splits=kind)
        for each, size, kind in zip(chosen, sizes, splits, strict=False)
    ]
