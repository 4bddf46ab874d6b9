"""The result of `bench.latency`: entries from served requests, a table, and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.report import line_chart, report
from bench.serving.served import (
    Served,
    between_tokens_ms,
    first_token_s,
    per_token_ms,
    quantiles,
    tokens_per_second,
)

IDLE = "one at a time"
COLUMNS = (
    "engine, arrivals", "a second", "tokens/s", "first token s", "p99", "ms/token", "p99",
    "over idle", "ms between", "p99", "over idle",
)  # fmt: skip
# Times that are divided by those of the idle engine, and the names of the ratios: a request's mean
# time per token, and the time between two tokens, whose median ignores the few waits for a prefill.
OVER_IDLE = {"per_token_ms": "over_idle", "between_tokens_ms": "between_over_idle"}


@dataclass(frozen=True)
class Condition:
    """How requests arrive.

    rate: requests per second, None for one at a time. load: the rate as a fraction of our
    saturation rate, if it was given so.
    """

    name: str
    rate: float | None = None
    load: float | None = None


# The requests of each repeat, by engine and condition.
Measured = Mapping[tuple[str, Condition], Sequence[Sequence[Served]]]


def entries(measured: Measured) -> list[dict[str, Any]]:
    """Return the times of each engine under each condition."""
    found = [_entry(name, condition, each) for (name, condition), each in measured.items()]
    idle = {each["name"]: each for each in found if each["rate"] is None}
    for each in found:
        for times, ratio in OVER_IDLE.items():
            alone = idle[each["name"]][times]["median"]
            each[ratio] = round(each[times]["median"] / alone, 3)
    return found


def _entry(name: str, condition: Condition, repeats: Sequence[Sequence[Served]]) -> dict[str, Any]:
    pooled = [each for repeat in repeats for each in repeat]
    # Requests served one at a time have no throughput: the gaps between them mean nothing.
    rate = condition.rate
    return {
        "name": name,
        "arrivals": condition.name,
        "rate": None if rate is None else round(rate, 4),
        "load": condition.load,
        "requests": len(pooled),
        "tokens_per_second": None
        if rate is None
        else round(statistics.median(map(tokens_per_second, repeats)), 2),
        **_times(pooled),
        "repeats": [_times(each) for each in repeats],
    }


def _times(requests: Sequence[Served]) -> dict[str, dict[str, float]]:
    return {
        "first_token_s": quantiles(first_token_s(requests)),
        "per_token_ms": quantiles(per_token_ms(requests)),
        "between_tokens_ms": quantiles(between_tokens_ms(requests)),
    }


def lines(result: dict[str, Any]) -> list[str]:
    """Format the result as a table with a heading and remarks."""
    options, saturation = result["parameters"], result["saturation"]
    said = [
        f"{options['model']}, {options['dtype']}: {options['num_requests']} requests, "
        f"{options['repeats']} repeats; our saturation: "
        f"{saturation['requests_per_second']:.2f} requests/s, "
        f"{saturation['tokens_per_second']:.1f} tokens/s",
        "",
        *report.table(COLUMNS, [_row(each) for each in result["engines"]]),
        "",
        *_remarks(result["engines"]),
    ]
    if count := result["compilations"]:
        said.append(report.void(count))
    return said


def one_line(requests: Sequence[Served]) -> str:
    """Format the medians of one run."""
    first, token = (statistics.median(each(requests)) for each in (first_token_s, per_token_ms))
    return f"first token {first:.3f} s, {token:.1f} ms/token"


def draw(measured: Measured, title: str, path: Path) -> None:
    """Plot the distributions of the times."""
    pooled = {
        f"{name}, {condition.name}": [each for repeat in repeats for each in repeat]
        for (name, condition), repeats in measured.items()
    }
    panels = [
        line_chart.Panel(
            label,
            "share",
            {name: line_chart.shares(values(each)) for name, each in pooled.items()},
            marked=False,
        )
        for label, values in (
            ("seconds to the first token", first_token_s),
            ("ms per further token", per_token_ms),
            ("ms between two tokens", between_tokens_ms),
        )
    ]
    line_chart.draw(panels, title, path)


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    alone = entry["rate"] is None
    first, token = entry["first_token_s"], entry["per_token_ms"]
    between = entry["between_tokens_ms"]
    return (
        f"{entry['name']}, {entry['arrivals']}",
        "" if alone else f"{entry['rate']:.2f}",
        "" if alone else f"{entry['tokens_per_second']:.1f}",
        f"{first['median']:.3f}",
        f"{first['p99']:.3f}",
        f"{token['median']:.1f}",
        f"{token['p99']:.1f}",
        f"{entry['over_idle']:.2f} x",
        f"{between['median']:.1f}",
        f"{between['p99']:.1f}",
        f"{entry['between_over_idle']:.2f} x",
    )


def _remarks(found: Sequence[dict[str, Any]]) -> list[str]:
    """Compare each engine under load with the same engine when idle."""
    return [
        f"{each['name']}, {each['arrivals']}: median time per token {each['over_idle']:.2f} x that "
        f"of the idle engine, median time between two tokens {each['between_over_idle']:.2f} x; "
        f"p99 to the first token {each['first_token_s']['p99']:.3f} s"
        for each in found
        if each["rate"] is not None
    ]
