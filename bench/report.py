"""From trials to one result, as a dict for JSON, and from that dict to a table for people."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench.trial import Trial

COLUMNS = ("engine", "tokens/s", "min - max", "seconds", "steps", "KV use", "preempted", "compiled")


def engine_entry(name: str, trials: Sequence[Trial]) -> dict[str, Any]:
    """The numbers of one engine, per repeat and over all."""
    rates = [trial.tokens_per_second for trial in trials]
    return {
        "name": name,
        "tokens_per_second": {
            "median": round(statistics.median(rates), 2),
            "min": round(min(rates), 2),
            "max": round(max(rates), 2),
        },
        "repeats": [
            {
                "seconds": round(trial.seconds, 4),
                "tokens_per_second": round(rate, 2),
                **trial.details,
            }
            for trial, rate in zip(trials, rates, strict=True)
        ],
    }


def ratios(engines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The first engine's median over each other's, by the other's name."""
    ours, *others = [(each["name"], each["tokens_per_second"]["median"]) for each in engines]
    return {name: round(ours[1] / median, 3) for name, median in others}


def lines(result: dict[str, Any]) -> list[str]:
    """The table, with what is needed to read it."""
    workload, warmup = result["workload"], result["warmup"]
    return [
        f"{result['parameters']['model']}, {result['parameters']['dtype']}: "
        f"{workload['requests']} requests, {workload['prompt_tokens']:,} prompt tokens, "
        f"{workload['output_tokens']:,} output tokens",
        f"warmup, not counted: {warmup['programs']} programs in {warmup['seconds']} s",
        "",
        *_table([_row(each) for each in result["engines"]]),
        "",
        *_remarks(result),
    ]


def num_compilations(result: dict[str, Any]) -> int:
    """Programs that were compiled while the clock ran."""
    repeats = [repeat for each in result["engines"] for repeat in each["repeats"]]
    return sum(repeat.get("compilations", 0) for repeat in repeats)


def _remarks(result: dict[str, Any]) -> list[str]:
    ours = result["engines"][0]["name"]
    remarks = [f"{ours} over {name}: {ratio:.2f} x" for name, ratio in result["ratios"].items()]
    if same := result["agreement"]:
        remarks.append(
            f"greedy ids equal to the peer's up to the first difference: {same['ids']:,} of "
            f"{same['of_ids']:,}; in {same['requests']} of {same['of_requests']} requests all are"
        )
    if count := num_compilations(result):
        remarks.append(
            f"WARNING: {count} PROGRAM(S) WERE COMPILED WHILE THE CLOCK RAN; THESE NUMBERS ARE VOID"
        )
    return remarks


def _row(engine: dict[str, Any]) -> tuple[str, ...]:
    rate, repeats = engine["tokens_per_second"], engine["repeats"]
    seconds = statistics.median(repeat["seconds"] for repeat in repeats)
    row = (
        engine["name"],
        f"{rate['median']:.1f}",
        f"{rate['min']:.1f} - {rate['max']:.1f}",
        f"{seconds:.2f}",
    )
    if "steps" not in repeats[0]:
        return (*row, "", "", "", "")
    return (
        *row,
        f"{statistics.median(repeat['steps'] for repeat in repeats):.0f}",
        f"{statistics.median(repeat['mean_kv_utilization'] for repeat in repeats):.1%}",
        str(sum(repeat["preemptions"] for repeat in repeats)),
        str(sum(repeat["compilations"] for repeat in repeats)),
    )


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *rest = zip(cells, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)])

    return [line(COLUMNS), "  ".join("-" * width for width in widths), *map(line, rows)]
