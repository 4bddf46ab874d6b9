"""Throughput against the number of requests and against the context."""

from __future__ import annotations

from typing import Any

from bench.report import markdown, results

COLUMNS = (
    "requests", "tokens each, prompt and output", "prompt and output tokens/s", "output tokens/s",
    "tokens/s while all decode",
)  # fmt: skip


def full(name: str) -> list[str]:
    """The conditions, a row for each size, and the time of `schedule`."""
    result = results.load(name)
    parameters = result["parameters"]
    text = (
        f"{results.model(result)} in {parameters['dtype']}, {parameters['output_tokens']} output "
        f"tokens each, {parameters['repeats']} run. {results.conditions(result)}"
    )
    rows = [_row(each) for each in result["requests"] + result["contexts"]]
    return [
        *markdown.paragraph(text),
        "",
        *markdown.table(COLUMNS, rows),
        "",
        *_schedule(result["schedule"]),
    ]


def _row(entry: dict[str, Any]) -> list[str]:
    rates = entry["rates"]
    decoding = rates.get("decoding_per_second")
    return [
        f"{entry['requests']:,}",
        f"{entry['tokens_each']:,}",
        f"{rates['all_per_second']:,.0f}",
        f"{rates['output_per_second']:,.0f}",
        f"{decoding:,.0f}" if decoding else "",
    ]


def _schedule(buckets: list[dict[str, Any]]) -> list[str]:
    """The slowest median over the numbers of waiting requests, and the slowest step."""
    median = max(each["median_ms"] for each in buckets)
    longest = max(each["max_ms"] for each in buckets)
    waiting = max(each["waiting"] for each in buckets)
    return markdown.paragraph(
        f"With 0 to {waiting:,} requests waiting, planning a step takes at most {median:.2f} ms in "
        f"the median and {longest:.1f} ms in the slowest step."
    )
