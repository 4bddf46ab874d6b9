"""Time, bytes and bandwidth of attention: pagedjax's implementations compared with others.

    python -m bench.attention [--shapes llama-3-8b,...] [--json FILE] [--plot FILE]
    python -m bench.attention --tune      (on a GPU: writes the device's table of tiles)

Each implementation ("path") is first compared with the exact result; one that disagrees is not
timed. On a GPU every path is timed. On a CPU only the XLA paths are timed; the Pallas kernels are
checked in interpret mode, and compiled for an H200 if `make .aot/.installed` has installed the
compiler.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from bench import compiled_facts
from bench.attention import interpreted, tuning
from bench.attention import report as attention_report
from bench.attention.paths import PATHS, Where
from bench.attention.problem import make_problem
from bench.attention.roofline import measure_device
from bench.attention.shapes import DTYPES, MODELS, Case, decode_grid, prefill_grid
from bench.attention.trial import describe, run, what_is_too_large, where_it_runs
from bench.report import command_line, standalone
from pallas_kernels import tiles

KINDS = ("decode", "prefill")
# Defaults of the options.
ON_GPU = {
    "shapes": tuple(MODELS), "dtypes": DTYPES, "batches": (1, 8, 32, 128, 256),
    "contexts": (256, 1024, 4096, 16384, 32768), "chunk": 2048, "seconds": 420.0,
}  # fmt: skip
ON_CPU = {
    "shapes": ("smollm2-135m", "llama-3-8b"), "dtypes": ("bf16",), "batches": (1, 16, 64),
    "contexts": (256, 1024), "chunk": 128, "seconds": 120.0,
}  # fmt: skip
FACTS_SECONDS = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or non-zero after one line on stderr."""
    options = _parser().parse_args(arguments)
    standalone.allow()
    from pagedjax.checks.one_line import exit_status

    return exit_status(partial(_run, options), options.debug)


def _run(options: argparse.Namespace) -> None:
    from bench.report import header  # imports pagedjax, so only after `standalone.allow`

    where = where_it_runs()
    _fill_in(options, where)
    _check(options, where)
    described = header.describe()
    print("\n".join(header.lines(described)))
    if options.tune:
        _tune(options, where, described)
        return
    rates = measure_device(where.device.platform, options.repeats)
    print("\n".join(attention_report.device_lines(rates, where.on_gpu)), flush=True)
    result: dict[str, Any] = {
        "header": described, "parameters": _parameters(options), "device": rates, "cases": [],
    }  # fmt: skip
    _measure(options, where, result)
    if not where.on_gpu:
        _without_gpu(options, result)
    command_line.write_json(options.json, result)
    if options.plot:
        title = f"paged decode attention, {described['device']}, jax {described['jax']}"
        attention_report.draw(result["cases"], title, options.plot)


def _fill_in(options: argparse.Namespace, where: Where) -> None:
    for name, value in (ON_GPU if where.on_gpu else ON_CPU).items():
        if getattr(options, name) is None:
            setattr(options, name, value)


def _check(options: argparse.Namespace, where: Where) -> None:
    """Refuse invalid options now, not after minutes of measuring."""
    if options.tune and not where.on_gpu:
        raise ValueError("--tune measures kernels on a GPU, and there is none")
    if options.tune and options.plot is not None:
        raise ValueError("--tune does not support --plot")
    known = {"shapes": tuple(MODELS), "paths": tuple(PATHS), "dtypes": DTYPES, "kinds": KINDS}
    for name, supported in known.items():
        for each in getattr(options, name):
            if each not in supported:
                raise ValueError(f"--{name} {each!r} is unknown; supported: {', '.join(supported)}")
    for name in ("batches", "contexts"):
        if min(getattr(options, name)) < 1:
            raise ValueError(f"--{name} must be at least 1")
    for name in ("chunk", "repeats", "block_size"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1")
    command_line.check_targets(options.json, options.plot)


def cases(options: argparse.Namespace) -> Iterator[tuple[Case, str]]:
    """Yield all cases with all dtypes of the pool, by kind and model."""
    for kind in options.kinds:
        for model in options.shapes:
            heads = MODELS[model]
            grid = (
                decode_grid(heads, options.batches, options.contexts)
                if kind == "decode"
                else prefill_grid(heads, options.chunk)
            )
            for case in grid:
                for dtype in options.dtypes:
                    yield case, dtype


def _measure(options: argparse.Namespace, where: Where, result: dict[str, Any]) -> None:
    end = time.monotonic() + options.seconds
    said: set[str] = set()
    for case, dtype in cases(options):
        if time.monotonic() > end:
            entry = describe(case, dtype) | {"skipped": f"past --seconds {options.seconds:.0f}"}
        else:
            entry = run(
                case, dtype, options.paths, where, options.block_size, options.repeats,
                result["device"],
            )  # fmt: skip
        result["cases"].append(entry)
        print("\n".join(attention_report.case_lines(entry, said)), flush=True)
        command_line.write_json(options.json, result)  # after each case, for runs that are stopped


def _without_gpu(options: argparse.Namespace, result: dict[str, Any]) -> None:
    result["interpreted"] = list(interpreted.checks(options.paths, options.kinds))
    print("\n".join(attention_report.check_lines(result["interpreted"])), flush=True)
    if not options.facts:
        return
    try:
        facts = compiled_facts.gather(options.shapes, DTYPES, FACTS_SECONDS)
    except FileNotFoundError as error:
        print(f"\n{error}")
        return
    result["compiled_for_h200"] = facts
    print("\n".join(attention_report.facts_lines(facts)))


def _tune(options: argparse.Namespace, where: Where, described: dict[str, Any]) -> None:
    end = time.monotonic() + options.tune_seconds
    name = tiles.device_of(where.device).name
    todo: dict[str, tuple[Case, str]] = {}
    for case, dtype in cases(options):
        if what_is_too_large(case, dtype, where) is None:
            todo.setdefault(tuning.key_of(case, dtype, options.block_size), (case, dtype))
    found: dict[str, Any] = {}
    result = {"header": described, "parameters": _parameters(options), "tuned": []}
    for index, (key, (case, dtype)) in enumerate(todo.items()):
        left = end - time.monotonic()
        if left <= 0:
            print(f"out of time: {len(todo) - index} of {len(todo)} keys were not tuned")
            break
        problem = make_problem(case, dtype, options.block_size)
        done = tuning.search(problem, where, left / (len(todo) - index))
        print("\n".join(tuning.outcome_lines(key, done)), flush=True)
        result["tuned"].append(tuning.outcome(key, done))
        command_line.write_json(options.json, result)
        if done.best is not None:
            found[key] = done.best
            path = tiles.save_table(name, tuning.merged(name, found), described)
            print(f"  written to {path.parent.name}/{path.name}", flush=True)


def _parameters(options: argparse.Namespace) -> dict[str, Any]:
    left_out = ("json", "plot", "debug")
    return {name: value for name, value in vars(options).items() if name not in left_out}


def _parser() -> argparse.ArgumentParser:
    parser = command_line.new_parser("attention", __doc__)
    add = parser.add_argument
    names, numbers = command_line.listed(str), command_line.listed(int)
    add("--shapes", type=names, help=f"of {', '.join(MODELS)}")
    add("--paths", type=names, default=tuple(PATHS), help=f"of {', '.join(PATHS)}")
    add("--dtypes", type=names, help="of the pool: bf16, int8, fp8")
    add("--kinds", type=names, default=KINDS, help="decode, prefill")
    add("--batches", type=numbers, help="rows of the decode grid")
    add("--contexts", type=numbers, help="context lengths of the decode grid")
    add("--chunk", type=int, help="queries of a prefill chunk; the prompt has four times as many")
    command_line.add_block_size(parser)
    command_line.add_repeats(parser, 7, "blocks of at least 20 ms per path, for the median")
    add("--seconds", type=float, help="start no case after this time")
    add("--no-facts", dest="facts", action="store_false", help="compile nothing for an H200")
    add("--tune", action="store_true", help="write the device's table of tiles instead")
    add("--tune-seconds", type=float, default=300.0, help="approximate time of the search")
    command_line.add_outputs(parser, plot="the bandwidths")
    return parser


if __name__ == "__main__":
    sys.exit(main())
