"""The result of `bench.attention` as tables and as a chart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.report import bar_chart
from bench.report.report import table

COLUMNS = (
    "path", "ms", "min - max", "GB/s", "of copy", "TFLOP/s", "of matmul", "difference",
)  # fmt: skip
MIB = 1 << 20


def device_lines(rates: dict[str, Any], on_gpu: bool) -> list[str]:
    """Format the device's measured rates, of which shares are taken, and how calls are timed."""
    how = (
        "calls are chained inside one program, so dispatch is not counted"
        if on_gpu
        else "calls are dispatched one by one, so dispatch is counted"
    )
    return [
        f"a copy of {rates['copy_bytes'] // MIB} MiB: "
        f"{rates['copy_bytes_per_second'] / 1e9:,.1f} GB/s, read and written; a bfloat16 product "
        f"of {rates['matmul_side']} squared: "
        f"{rates['matmul_flops_per_second'] / 1e12:,.3f} TFLOP/s",
        f"{how}; GB/s count keys, values, scales, queries and output once",
    ]


def case_lines(entry: dict[str, Any], said: set[str]) -> list[str]:
    """Format one case. said: reasons that were printed before and are not repeated."""
    head = (
        f"{entry['model']} {entry['kind']} {entry['label']} {entry['dtype']}: "
        f"{entry['bytes'] / MIB:,.1f} MiB, {entry['flops_per_byte']:.1f} flops per byte"
    )
    found = entry.get("paths", {})
    timed = {name: each for name, each in found.items() if each["status"] == "timed"}
    lines = ["", head]
    if timed:
        lines += table(COLUMNS, [_row(name, each) for name, each in timed.items()])
    reasons = [
        f"{name}: {each['status']}: {each['reason']}"
        for name, each in found.items()
        if name not in timed and "reason" in each
    ]
    lines += [reason for reason in reasons if reason not in said]
    said.update(reasons)
    return lines + ([f"not run: {entry['skipped']}"] if "skipped" in entry else [])


def _row(name: str, path: dict[str, Any]) -> tuple[str, ...]:
    milli = {key: 1e3 * path[f"{key}_s"] for key in ("median", "min", "max")}
    return (
        name,
        f"{milli['median']:.4g}",
        f"{milli['min']:.4g} - {milli['max']:.4g}",
        f"{path['bytes_per_second'] / 1e9:,.1f}",
        f"{path['share_of_copy']:.1%}",
        f"{path['flops_per_second'] / 1e12:,.3g}",
        f"{path['share_of_matmul']:.1%}",
        f"{path['difference']:.1e}",
    )


def check_lines(checks: Sequence[dict[str, Any]]) -> list[str]:
    """Format the checks in interpret mode."""
    lines = ["", "kernels in interpret mode, compared with the reference; nothing is timed:"]
    for each in checks:
        said = (
            f"{each['status']}: {each['reason']}"
            if "reason" in each
            else f"difference {each['difference']:.1e}"
        )
        lines.append(f"  {each['path']} {each['kind']} {each['dtype']}: {said}")
    return lines


def facts_lines(facts: Sequence[dict[str, Any]]) -> list[str]:
    """Format the facts of compiling for an H200, and the limits from its data sheet."""
    columns = (
        "compiled for H200", "kernel", "registers", "spilled", "shared KiB", "launches",
        "temporary MiB", "roofline us",
    )  # fmt: skip
    rows = []
    for fact in facts:
        for kernel in fact.get("kernels", []):
            launches = sum(fact["launches"].values()) + sum(fact["launches_in_loops"].values())
            rows.append(
                (
                    fact["case"], kernel["name"], str(kernel["registers"]),
                    f"{kernel['spill_bytes']} B", f"{kernel['shared_bytes'] / 1024:.1f}",
                    str(launches), f"{fact['temporary_bytes'] / MIB:.1f}",
                    f"{1e6 * fact['roofline_s']:.1f}",
                )
            )  # fmt: skip
    failed = [f"{fact['case']}: {fact['reason']}" for fact in facts if "reason" in fact]
    note = (
        "roofline: arithmetic, not a measurement; bytes over 4.8 TB/s or flops over 989 TFLOP/s, "
        "whichever takes longer"
    )
    return ["", *(table(columns, rows) if rows else []), *failed, note]


def draw(entries: Sequence[dict[str, Any]], title: str, path: Path) -> None:
    """Draw GB/s: a group of bars for each decode case, a bar for each path."""
    bar_chart.check()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [each for each in entries if each["kind"] == "decode" and "paths" in each]
    names = [f"{each['model']} {each['label']} {each['dtype']}" for each in shown]
    paths = list(dict.fromkeys(name for each in shown for name in each["paths"]))
    timed = {
        path: [each["paths"].get(path, {}).get("bytes_per_second", 0) / 1e9 for each in shown]
        for path in paths
    }
    timed = {path: rates for path, rates in timed.items() if any(rates)}
    figure = Figure(figsize=(8, max(3, 0.3 * len(shown) * max(1, len(timed)))))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    height = 0.8 / max(1, len(timed))
    for index, (name, rates) in enumerate(timed.items()):
        places = [place + index * height for place in range(len(shown))]
        axes.barh(places, rates, height=height, label=name)
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(shown))], names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("GB/s of keys, values, queries and output")
    axes.set_title(title, fontsize="medium")
    if timed:
        axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
