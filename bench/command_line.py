"""What the commands that measure an engine share: early refusals, and the result's file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def check(options: argparse.Namespace, counts: tuple[str, ...]) -> None:
    """Refuse now what would only fail after minutes of measuring.

    counts: names of options that must be at least 1. Also checked are `model`, and the folders of
    `json` and `plot`, as far as the command has them.
    """
    given = vars(options)
    for name in counts:
        if given[name] < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1")
    if not options.model.exists():
        raise ValueError(f"there is no model at {options.model}")
    for path in (given.get("json"), given.get("plot")):
        if path is not None and not path.absolute().parent.is_dir():
            raise ValueError(f"there is no folder for {path}")


def parameters(options: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    """The options of those names, and the model's name."""
    given = vars(options)
    # Without its folder: a result must not tell where a machine keeps its files.
    return {"model": options.model.name} | {name: given[name] for name in names}


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    """Write the result where one was asked for."""
    if path is not None:
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
