"""The result of `bench.throughput` from its trials, and tables of results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench.serving.trial import Trial

COLUMNS = (
    "engine", "tokens/s", "min - max", "seconds", "steps", "KV use", "padding", "preempted",
    "compiled",
)  # fmt: skip
SINGLE_COLUMNS = ("one request alone", "ms/token", "min - max", "tokens/s")


def engine_entry(name: str, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the numbers of one engine, per repeat and over all repeats."""
    rates = [trial.tokens_per_second for trial in trials]
    return {
        "name": name,
        "tokens_per_second": spread(rates),
        "repeats": [
            {
                "seconds": round(trial.seconds, 4),
                "tokens_per_second": round(rate, 2),
                **trial.details,
            }
            for trial, rate in zip(trials, rates, strict=True)
        ],
    }


def single_entry(name: str, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return `engine_entry` for one request alone, and its time per token, prefill included."""
    per_token = [1e3 * trial.seconds / sum(map(len, trial.outputs)) for trial in trials]
    return engine_entry(name, trials) | {"ms_per_token": spread(per_token)}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, minimum and maximum, rounded."""
    ends = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, 2) for name, value in ends.items()}


def ratios(engines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Divide the first engine's median by each other's; return ratios by the other's name."""
    ours, *others = [(each["name"], each["tokens_per_second"]["median"]) for each in engines]
    return {name: round(ours[1] / median, 3) for name, median in others}


def lines(result: dict[str, Any]) -> list[str]:
    """Format the result as a table with a heading and remarks."""
    workload, warmup = result["workload"], result["warmup"]
    return [
        f"{result['parameters']['model']}, {result['parameters']['dtype']}: "
        f"{workload['requests']} requests, {workload['prompt_tokens']:,} prompt tokens, "
        f"{workload['output_tokens']:,} output tokens",
        f"warmup, not counted: {warmup['programs']} programs in {warmup['seconds']} s",
        "",
        *table(COLUMNS, [_row(each) for each in result["engines"]]),
        *_remarks(result),
        *_single_lines(result.get("single")),
        *([void(count)] if (count := num_compilations(result)) else []),
    ]


def num_compilations(result: dict[str, Any]) -> int:
    """Count the programs that were compiled during timed runs."""
    engines = result["engines"] + (result.get("single") or {}).get("engines", [])
    repeats = [repeat for each in engines for repeat in each["repeats"]]
    return sum(repeat.get("compilations", 0) for repeat in repeats)


def void(compilations: int) -> str:
    """Return the warning for a result with programs that were compiled during timed runs."""
    return (
        f"WARNING: {compilations} PROGRAM(S) WERE COMPILED IN TIMED RUNS; THESE NUMBERS ARE INVALID"
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format a table with a rule; the first column is left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *rest = zip(cells, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)])

    return [line(columns), "  ".join("-" * width for width in widths), *map(line, rows)]


def between(ends: dict[str, float]) -> str:
    """Format minimum and maximum of a spread for a cell."""
    return f"{ends['min']:.1f} - {ends['max']:.1f}"


def _remarks(result: dict[str, Any]) -> list[str]:
    ours = result["engines"][0]["name"]
    remarks = [f"{ours} over {name}: {ratio:.2f} x" for name, ratio in result["ratios"].items()]
    for name, same in result["agreement"].items():
        remarks.append(
            f"greedy ids equal to those of {name} up to the first difference: {same['ids']:,} of "
            f"{same['of_ids']:,}; all ids in {same['requests']} of {same['of_requests']} requests"
        )
    return ["", *remarks] if remarks else []


def _single_lines(single: dict[str, Any] | None) -> list[str]:
    if single is None:
        return []
    rows = [
        (
            each["name"],
            f"{each['ms_per_token']['median']:.1f}",
            between(each["ms_per_token"]),
            f"{each['tokens_per_second']['median']:.1f}",
        )
        for each in single["engines"]
    ]
    ours = single["engines"][0]["name"]
    remarks = [
        f"{ours} over {name}, alone: {ratio:.2f} x" for name, ratio in single["ratios"].items()
    ]
    return ["", *table(SINGLE_COLUMNS, rows), *([""] if remarks else []), *remarks]


def _row(engine: dict[str, Any]) -> tuple[str, ...]:
    rate, repeats = engine["tokens_per_second"], engine["repeats"]
    row = (
        engine["name"],
        f"{rate['median']:.1f}",
        between(rate),
        f"{_median(repeats, 'seconds'):.2f}",
    )
    if "steps" not in repeats[0]:
        return (*row, *[""] * (len(COLUMNS) - len(row)))
    return (
        *row,
        f"{_median(repeats, 'steps'):.0f}",
        f"{_median(repeats, 'mean_kv_utilization'):.1%}",
        f"{_median(repeats, 'padding_waste'):.1%}" if "padding_waste" in repeats[0] else "",
        str(sum(repeat["preemptions"] for repeat in repeats)),
        str(sum(repeat["compilations"] for repeat in repeats)),
    )


def _median(repeats: Sequence[dict[str, Any]], name: str) -> float:
    return statistics.median(repeat[name] for repeat in repeats)


def aligned(rows: Sequence[Sequence[str]], left: int = 0) -> list[str]:
    """Format rows of cells, headings included; the first `left` columns are left-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
