"""The result of `bench.parity`: one entry per compared pair, and a table of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.report.report import aligned

COLUMNS = ("dtype", "pair", "mean", "p50", "p99", "max")
Logprobs = np.ndarray  # [prompts, tokens] float64, of the output tokens


def entry(dtype: str, pair: str, one: Logprobs, other: Logprobs) -> dict[str, Any]:
    """Return the distribution of the absolute differences, in nats."""
    moved = np.abs(one - other)
    return {
        "dtype": dtype,
        "pair": pair,
        "count": moved.size,
        "mean": float(moved.mean()),
        "p50": float(np.quantile(moved, 0.5)),
        "p99": float(np.quantile(moved, 0.99)),
        "max": float(moved.max()),
    }


def lines(result: dict[str, Any]) -> list[str]:
    """Format the result as a table with a heading."""
    rows = [COLUMNS] + [
        (each["dtype"], each["pair"], *(f"{each[name]:.2e}" for name in COLUMNS[2:]))
        for each in result["pairs"]
    ]
    about = f"{result['model']}: {result['prompts']} prompts x {result['tokens']} sampled tokens"
    return [f"{about}; |difference of log probabilities|, in nats", *aligned(rows, left=2)]
