"""The results of benchmark runs, which are JSON files in `bench/results`."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "results"


@cache
def load(name: str) -> dict[str, Any]:
    """Return the result in `bench/results/NAME.json`."""
    result: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return result


def conditions(result: dict[str, Any]) -> str:
    """Describe the machine, the versions and the code of a run in one sentence."""
    header = result["header"]
    instructions = ", ".join(header.get("instructions", ())) or "not recorded"
    return (
        f"{header['cpu']}, {header['cores']} cores, {header['memory_gib']} GiB, instruction sets: "
        f"{instructions}; jax {header['jax']} on {header['platform']}; commit {header['commit']}, "
        f"{header['date'][:10]}."
    )


def model(result: dict[str, Any]) -> str:
    """Name the checkpoint without the suffix of its file."""
    name = result.get("model") or result["parameters"]["model"]
    return str(name).removesuffix(".gguf")
