"""The result of `bench.scoring`: rates and ratios from its trials, and a table of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.report import report
from bench.serving.trial import Trial

DTYPE = "float32"
EQUAL, RAGGED, PEER = "pagedjax, extended lists", "pagedjax, as they are", "transformers, padded"
SHARING, ALONE = "8 x 8 lists, shared prefixes", "8 x 8 lists, no prefix caching"
COLUMNS = ("lists", "tokens/s", "min - max", "seconds", "CPU s", "tokens", "compiled")


def summary(trials: dict[str, list[Trial]]) -> dict[str, Any]:
    """Return rates, and ratios within each repeat; ratios to the peer are None without one."""
    peer = trials.get(PEER)
    logprobs = {name: each[0].details["logprobs"] for name, each in trials.items()}
    moved = peer and max(
        float(np.abs(np.array(ours, np.float64) - theirs).max(initial=0.0))
        for ours, theirs in zip(logprobs[RAGGED], logprobs[PEER], strict=True)
    )
    return {
        "engines": [_entry(name, each) for name, each in trials.items()],
        "at_equal_padding": _speedup(peer, trials[EQUAL]) if peer else None,
        "as_they_are": _speedup(peer, trials[RAGGED]) if peer else None,
        "prefix_sharing": _speedup(trials[ALONE], trials[SHARING]),
        "max_abs_difference": moved,
    }


def lines(result: dict[str, Any]) -> list[str]:
    """Format the result as a table with remarks."""
    workload = result["workload"]
    return [
        f"{result['parameters']['model']}, {DTYPE}: {workload['lists']} lists, "
        f"{workload['tokens']:,} tokens, {workload['padded_tokens']:,} with padding",
        *report.aligned([COLUMNS, *map(_row, result["engines"])], left=1),
        *_remarks(result),
    ]


def _speedup(slow: Sequence[Trial], fast: Sequence[Trial]) -> dict[str, Any]:
    """Ratios of seconds and of CPU seconds, for each repeat and their median."""
    pairs = list(zip(slow, fast, strict=True))
    ratios = [round(a.seconds / b.seconds, 3) for a, b in pairs]
    cpu = [round(a.details["cpu_seconds"] / b.details["cpu_seconds"], 3) for a, b in pairs]
    return {
        "median": round(statistics.median(ratios), 3),
        "repeats": ratios,
        "cpu_median": round(statistics.median(cpu), 3),
        "cpu_repeats": cpu,
    }


def _said(speedup: dict[str, Any]) -> str:
    return f"{speedup['median']:.2f} x; in CPU seconds {speedup['cpu_median']:.2f} x"


def _entry(name: str, trials: Sequence[Trial]) -> dict[str, Any]:
    entry = report.engine_entry(name, trials)
    for repeat in entry["repeats"]:
        del repeat["logprobs"]  # thousands of numbers, too many for a report
    return entry | {"tokens": sum(map(len, trials[0].outputs))}


def _remarks(result: dict[str, Any]) -> list[str]:
    remarks = []
    if equal := result["at_equal_padding"]:
        ragged = result["as_they_are"]
        remarks += [
            f"pagedjax over transformers at equal padding: {_said(equal)}",
            f"pagedjax over transformers, lists as they are: {_said(ragged)}",
            f"log probabilities differ by at most {result['max_abs_difference']:.1e}",
        ]
    remarks.append(f"shared prefixes: {_said(result['prefix_sharing'])}")
    if count := report.num_compilations(result):
        remarks.append(report.void(count))
    return remarks


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    rate, repeats = entry["tokens_per_second"], entry["repeats"]
    counts = [each.get("compilations") for each in repeats]
    compiled = "" if None in counts else str(sum(counts))
    return (
        entry["name"],
        f"{rate['median']:.1f}",
        f"{rate['min']:.1f} - {rate['max']:.1f}",
        f"{statistics.median(each['seconds'] for each in repeats):.2f}",
        f"{statistics.median(each['cpu_seconds'] for each in repeats):.2f}",
        f"{entry['tokens']:,}",
        compiled,
    )
