"""Attention alone: time on a CPU, and what XLA compiles for an H200."""

from __future__ import annotations

from typing import Any

from bench.report import markdown, results

COLUMNS = ("model", "case", "dtype", "gather, then multiply, ms", "pagedjax in XLA, ms", "ratio")
COMPILED_COLUMNS = (
    "implementation and case", "temporaries, KiB", "kernel", "registers", "spilled bytes",
    "shared KiB",
)  # fmt: skip


def timed(name: str) -> list[str]:
    """Medians of both XLA implementations."""
    result = results.load(name)
    text = (
        f"One layer, median of {result['parameters']['repeats']} blocks of calls, one run. "
        f"{results.conditions(result)}"
    )
    rows = [_row(each) for each in result["cases"]]
    return [*markdown.paragraph(text), "", *markdown.table(COLUMNS, rows)]


def compiled(name: str) -> list[str]:
    """Registers, spills and shared memory of the kernels, from the compiler."""
    result = results.load(name)
    return markdown.table(COMPILED_COLUMNS, [_facts(each) for each in result["compiled_for_h200"]])


def _row(case: dict[str, Any]) -> list[str]:
    gather, online = (
        1e3 * case["paths"][path]["median_s"] for path in ("xla-gather", "xla-online")
    )
    return [
        case["model"],
        f"{case['kind']}, {case['label']}",
        case["dtype"],
        f"{gather:.3g}",
        f"{online:.3g}",
        f"{gather / online:.2f}",
    ]


def _facts(case: dict[str, Any]) -> list[str]:
    kernels = case["kernels"]
    return [
        case["case"],
        f"{case['temporary_bytes'] / 1024:,.0f}",
        ", ".join(each["name"] for each in kernels),
        ", ".join(str(each["registers"]) for each in kernels),
        ", ".join(str(each["spill_bytes"]) for each in kernels),
        ", ".join(f"{each['shared_bytes'] / 1024:.0f}" for each in kernels),
    ]
