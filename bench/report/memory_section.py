"""Use of the KV memory, simulated with random request lengths."""

from __future__ import annotations

from typing import Any

from bench.report import markdown, results


def full(name: str) -> list[str]:
    """The conditions, and the utilization of each way to reserve memory, by mix of lengths."""
    result = results.load(name)
    mixes = list(result["mixes"])
    columns = ["reservation", *(_heading(result, mix) for mix in mixes)]
    rows = [
        [what, *(f"{utilization(result, mix, what):.1%}" for mix in mixes)]
        for what in reservations(result)
    ]
    return [*markdown.paragraph(_conditions(result)), "", *markdown.table(columns, rows)]


def reservations(result: dict[str, Any]) -> list[str]:
    """Names of the ways to reserve memory, in the order of the result."""
    return list(dict.fromkeys(each["what"] for each in result["steady_state"]))


def utilization(result: dict[str, Any], mix: str, what: str) -> float:
    """Share of the reserved token slots that hold tokens, as the mean over the steps."""
    return float(
        next(
            each["utilization"]
            for each in result["steady_state"]
            if each["mix"] == mix and each["what"] == what
        )
    )


def _heading(result: dict[str, Any], mix: str) -> str:
    means = result["mixes"][mix]["means"]
    return f"{mix}: {means['prompt_len']:.0f} + {means['output_len']:.0f} tokens"


def _conditions(result: dict[str, Any]) -> str:
    found = result["parameters"]
    return (
        f"Simulation, no model runs: share of the reserved KV memory that holds tokens, mean over "
        f"the steps. {found['memory_bytes'] / 2**30:g} GiB for {found['memory_model']} in "
        f"{found['dtype']}, {found['slots']:,} token slots, {found['requests']:,} requests of at "
        f"most {found['max_seq_len']:,} tokens; columns name the mix and its mean prompt and "
        f"output lengths. Commit {result['header']['commit']}, {result['header']['date'][:10]}."
    )
