"""Time to the first token and time per token with Poisson arrivals."""

from __future__ import annotations

from typing import Any

from bench.report import markdown, results

COLUMNS = (
    "engine", "arrivals", "requests", "ms per token, median", "ratio to idle",
    "first token, s, median", "first token, s, p99",
)  # fmt: skip


def full(name: str) -> list[str]:
    """The conditions and a row for each engine and load."""
    result = results.load(name)
    parameters, saturation = result["parameters"], result["saturation"]
    text = (
        f"{results.model(result)} in {parameters['dtype']}, {parameters['repeats']} repeats. "
        f"pagedjax saturates at {saturation['requests_per_second']:.2f} requests per second "
        f"({saturation['tokens_per_second']:.1f} output tokens/s). {results.conditions(result)}"
    )
    rows = [_row(each) for each in result["engines"]]
    return [*markdown.paragraph(text), "", *markdown.table(COLUMNS, rows)]


def _row(engine: dict[str, Any]) -> list[str]:
    rate = engine["rate"]
    return [
        engine["name"],
        engine["arrivals"] + (f", {rate:.2f} per second" if rate else ""),
        str(engine["requests"]),
        f"{engine['per_token_ms']['median']:.1f}",
        f"{engine['over_idle']:.2f}",
        f"{engine['first_token_s']['median']:.2f}",
        f"{engine['first_token_s']['p99']:.2f}",
    ]
