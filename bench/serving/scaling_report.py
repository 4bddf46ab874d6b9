"""The result of `bench.scaling` as tables and as panels of a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.report import line_chart, report

COLUMNS = ("requests, tokens each", "output/s", "all/s", "decoding/s", "steps", "padding")
WAITING_COLUMNS = ("waiting", "schedule ms", "max", "steps")
RATES = ("output_per_second", "all_per_second", "decoding_per_second")


def lines(result: dict[str, Any]) -> list[str]:
    """Format the result as tables."""
    options, entries = result["parameters"], result["requests"] + result["contexts"]
    waiting = [
        (f"{each['waiting']:,.0f}", f"{each['median_ms']:.3f}", f"{each['max_ms']:.3f}",
         str(each["steps"]))
        for each in result["schedule"]
    ]  # fmt: skip
    said = [
        f"{options['model']}, {options['dtype']}: {options['output_tokens']} output tokens each, "
        f"at most {options['max_num_seqs']} requests running",
        "",
        *report.table(COLUMNS, [_row(each) for each in entries]),
        "",
        *report.table(WAITING_COLUMNS, waiting),
    ]
    compiled = sum(case["compilations"] for each in entries for case in each["repeats"])
    return [*said, report.void(compiled)] if compiled else said


def _row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    last = entry["repeats"][-1]
    return (
        f"{entry['requests']:,} of {entry['tokens_each']:,}",
        *[f"{entry['rates'][name]:.1f}" if name in entry["rates"] else "" for name in RATES],
        str(last["steps"]),
        f"{last['padding_waste']:.1%}" if "padding_waste" in last else "",
    )


def panels(result: dict[str, Any]) -> list[line_chart.Panel]:
    """Plot throughput by requests and by context, and scheduling time by waiting requests."""
    sweeps = [
        line_chart.Panel(x, "tokens/s", _lines_of(result[sweep]), log=True)
        for sweep, x in (("requests", "requests"), ("contexts", "tokens of a request"))
    ]
    waiting = [each["waiting"] for each in result["schedule"]]
    cost = {"schedule": (waiting, [each["median_ms"] for each in result["schedule"]])}
    return [*sweeps, line_chart.Panel("requests waiting", "ms of schedule, a step", cost)]


def _lines_of(entries: Sequence[Mapping[str, Any]]) -> dict[str, line_chart.Line]:
    return {
        name.removesuffix("_per_second"): (
            [each["size"] for each in entries if name in each["rates"]],
            [each["rates"][name] for each in entries if name in each["rates"]],
        )
        for name in RATES
        if any(name in each["rates"] for each in entries)
    }
