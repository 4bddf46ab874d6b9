"""Facts about a GPU's decode step that was compiled without a GPU."""

from __future__ import annotations

from typing import Any

from bench.report import markdown, results

COLUMNS = (
    "target", "rows", "launches", "per layer, besides products", "copies",
    "GB of weights and keys read", "ms at the bandwidth limit", "temporaries, MiB",
)  # fmt: skip


def full(name: str) -> list[str]:
    """A row for each target and number of rows."""
    result = results.load(name)
    text = (
        f"Context of {result['context']:,} tokens per row; jax {result['header']['jax']}, commit "
        f"{result['header']['commit']}, {result['header']['date'][:10]}."
    )
    rows = [_row(each) for each in result["steps"]]
    return [*markdown.paragraph(text), "", *markdown.table(COLUMNS, rows)]


def _row(step: dict[str, Any]) -> list[str]:
    rows, padded = step["rows"], step["padded_rows"]
    large = len(step["large_copies"])
    return [
        step["target"].upper(),
        str(rows) + (f" (padded to {padded})" if padded != rows else ""),
        str(step["launches"]),
        f"{step['besides_products_per_layer']:.1f}",
        f"{step['copies']} ({large or 'none'} large)",
        f"{(step['weight_bytes'] + step['kv_bytes']) / 1e9:.2f}",
        f"{1e3 * step['byte_limit_seconds']:.2f}",
        f"{step['temporary_bytes'] / 2**20:.1f}",
    ]
