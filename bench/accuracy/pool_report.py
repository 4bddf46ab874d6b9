"""The result of `bench.kv_accuracy`: one entry per pool format, and a table of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.report.report import aligned
from pagedjax import ModelConfig
from pagedjax.layers.kv_cache import block_bytes

COLUMNS = ("KV pool", "bytes/token", "mean", "p99", "max", "perplexity", "change")


def entry(config: ModelConfig, dtype: str, found: np.ndarray, exact: np.ndarray) -> dict[str, Any]:
    """Return absolute differences from the exact log probabilities, in nats, and the perplexity.

    found, exact: log probabilities of the same tokens with this pool and with the float32 pool.
    """
    moved = np.abs(found - exact)
    return {
        "kv_cache_dtype": dtype,
        "bytes_per_token": block_bytes(config, 1, dtype),
        "mean_abs_difference": float(moved.mean()),
        "p99_abs_difference": float(np.quantile(moved, 0.99)),
        "max_abs_difference": float(moved.max()),
        "perplexity": float(np.exp(-found.mean())),
        "perplexity_change": float(np.expm1(exact.mean() - found.mean())),
    }


def lines(pools: Sequence[dict[str, Any]]) -> list[str]:
    """Format the entries as a table."""
    rows = [COLUMNS]
    for each in pools:
        name, size, mean, p99, most, perplexity, change = each.values()
        rows.append(
            (name, f"{size:,}", f"{mean:.2e}", f"{p99:.2e}", f"{most:.2e}", f"{perplexity:.4f}",
             f"{change:+.4%}")
        )  # fmt: skip
    return aligned(rows)
