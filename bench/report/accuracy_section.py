"""Differences of log probabilities: sampled against scored, and by format of the KV pool."""

from __future__ import annotations

from bench.report import markdown, results

PARITY_COLUMNS = ("dtype", "difference", "mean", "p99", "largest")
POOL_COLUMNS = ("KV pool", "bytes per token", "mean", "p99", "largest", "perplexity")


def parity(name: str) -> list[str]:
    """Absolute differences of a token's log probability, computed in two ways."""
    result = results.load(name)
    text = (
        f"{results.model(result)}, {result['prompts']} prompts, {result['tokens']} tokens each at "
        f"temperature {result['temperature']:g}; absolute differences of log probabilities. "
        f"{results.conditions(result)}"
    )
    names = ("mean", "p99", "max")
    rows = [
        [each["dtype"], each["pair"], *(f"{each[name]:.1e}" for name in names)]
        for each in result["pairs"]
    ]
    return [*markdown.paragraph(text), "", *markdown.table(PARITY_COLUMNS, rows)]


def pools(name: str) -> list[str]:
    """Absolute differences against a float32 pool, for each other format."""
    result = results.load(name)
    text = (
        f"{results.model(result)} in {result['dtype']}, {result['scored']:,} scored tokens; "
        f"absolute differences of log probabilities from those with a float32 pool, and the change "
        f"of the perplexity. {results.conditions(result)}"
    )
    rows = [
        [
            each["kv_cache_dtype"],
            f"{each['bytes_per_token']:,}",
            *(f"{each[f'{name}_abs_difference']:.4f}" for name in ("mean", "p99", "max")),
            f"{each['perplexity_change']:+.2%}",
        ]
        for each in result["pools"][1:]
    ]
    return [*markdown.paragraph(text), "", *markdown.table(POOL_COLUMNS, rows)]
