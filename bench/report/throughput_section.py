"""Throughput of pagedjax and other engines on the same requests."""

from __future__ import annotations

import statistics
from typing import Any

from bench.report import markdown, results

COLUMNS = (
    "engine", "output tokens/s", "speed, pagedjax / engine", "one request alone, ms per token",
    "speed, pagedjax / engine", "equal token ids",
)  # fmt: skip
SHORT_COLUMNS = COLUMNS[:3]


def full(name: str) -> list[str]:
    """The conditions, a row for each engine, and the counters of pagedjax."""
    result = results.load(name)
    return [
        *_workload(result),
        "",
        *markdown.table(COLUMNS, [_row(result, each) for each in result["engines"]]),
        "",
        *_counters(result),
    ]


def short(name: str) -> list[str]:
    """The conditions and the throughput of each engine."""
    result = results.load(name)
    rows = [_row(result, each)[: len(SHORT_COLUMNS)] for each in result["engines"]]
    return [*_workload(result), "", *markdown.table(SHORT_COLUMNS, rows)]


def _workload(result: dict[str, Any]) -> list[str]:
    workload, parameters = result["workload"], result["parameters"]
    return markdown.paragraph(
        f"{results.model(result)} in {parameters['dtype']}: {workload['requests']} requests, "
        f"{workload['prompt_tokens']:,} prompt tokens, {workload['output_tokens']:,} output "
        f"tokens, greedy; median (minimum - maximum) of {parameters['repeats']} repeats. "
        f"{results.conditions(result)}"
    )


def _row(result: dict[str, Any], engine: dict[str, Any]) -> list[str]:
    name = engine["name"]
    single = result["single"]
    alone = next(each for each in single["engines"] if each["name"] == name)
    same = result["agreement"].get(name)
    return [
        name,
        markdown.spread(engine["tokens_per_second"]),
        _ratio(result["ratios"], name),
        markdown.spread(alone["ms_per_token"]),
        _ratio(single["ratios"], name),
        f"{same['ids']:,} of {same['of_ids']:,}" if same else "",
    ]


def _ratio(ratios: dict[str, float], name: str) -> str:
    return f"{ratios[name]:.2f}" if name in ratios else ""


def _counters(result: dict[str, Any]) -> list[str]:
    """What the repeats of pagedjax counted; times are medians."""
    repeats, warmup = result["engines"][0]["repeats"], result["warmup"]
    step, host, exposed = (
        1e3 * statistics.median(each[name] / each["steps"] for each in repeats)
        for name in ("engine_seconds", "host_seconds", "exposed_seconds")
    )
    compilations = sum(each["compilations"] for each in repeats)
    return markdown.paragraph(
        f"pagedjax: {repeats[0]['steps']} steps of {step:.0f} ms, {host:.1f} ms of it on the host, "
        f"during {exposed:.2f} ms of which the device may have been idle; "
        f"{repeats[0]['padding_waste']:.1%} of the computed tokens were padding; {compilations} "
        f"compilations while serving. The warm-up of {warmup['programs']} programs took "
        f"{warmup['seconds']:.0f} s."
    )
