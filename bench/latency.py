"""Time to first token and time per output token of pagedjax and vLLM under arriving requests.

    python -m bench.latency --model FILE.gguf --peer PEER/bin/python --json FILE --plot FILE
    python -m bench.latency --model FILE.gguf --peer PEER/bin/python --cold

The requests are those of `bench.throughput`; they arrive as a Poisson process, the same for all
engines. `--load 0.7` is a fraction of our saturation rate, which is measured first by giving our
engine all requests at once; `--rates` are requests per second. Each engine also serves requests one
at a time, for the latency of an idle engine. Each repeat runs all conditions in turn, and quantiles
are over the requests of all repeats. `--cold` measures fresh processes instead: pagedjax without
and with a filled compilation cache, and Hugging Face's `generate`.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from bench.peers.peer import Peer
from bench.report import command_line, header
from bench.serving import cold_start, latency_report, open_loop, turns
from bench.serving.arrivals import poisson
from bench.serving.latency_report import IDLE, Condition
from bench.serving.own_engine import Options, OwnEngine
from bench.serving.served import Served
from bench.serving.workload import Workload
from pagedjax.checks.one_line import exit_status

OURS = "pagedjax"
# Options that `--cold` refuses, besides `--rates`, `--load` and `--plot`.
ARRIVING = (
    "num_requests", "idle_requests", "max_num_seqs", "max_num_batched_tokens", "block_size",
)  # fmt: skip
LOAD = 0.7
Serve = Callable[[Workload, list[float]], list[Served]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or non-zero after one line on stderr."""
    options = _parser().parse_args(arguments)
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    return exit_status(partial(_run, options), options.debug)


def _run(options: argparse.Namespace) -> None:
    _check(options)
    found = _cold(options) if options.cold else _serving(options)
    names = ("dtype", "repeats") if options.cold else ("dtype", "repeats", *ARRIVING)
    result = {
        "header": header.describe(),
        "parameters": command_line.parameters(options, names),
        **found,
    }
    said = cold_start.lines(result["cold"]) if options.cold else latency_report.lines(result)
    print("\n".join([*header.lines(result["header"]), *said]))
    command_line.write_json(options.json, result)


def _check(options: argparse.Namespace) -> None:
    """Refuse invalid options now, not after minutes of measuring."""
    counts = ("repeats", "num_requests", "idle_requests", "max_num_seqs", "block_size")
    command_line.check(options, counts)
    for name in ("rates", "load"):
        given = getattr(options, name) or ()
        if not all(0 < each < math.inf for each in given):
            raise ValueError(f"--{name} must be above 0 and finite")
        if len(set(given)) < len(given):
            raise ValueError(f"--{name} has a duplicate value")
    if options.cold:
        for name in (*ARRIVING, "rates", "load", "plot"):
            if getattr(options, name) != _parser().get_default(name):
                option = name.replace("_", "-")
                raise ValueError(f"--{option} cannot be used with --cold")


def _cold(options: argparse.Namespace) -> dict[str, Any]:
    entries = cold_start.measure(options.model, options.dtype, options.peer, options.repeats)
    return {"cold": entries}


def _serving(options: argparse.Namespace) -> dict[str, Any]:
    with ExitStack() as stack:
        servers: dict[str, Serve] = {}
        versions = None
        if options.peer is not None:
            peer = stack.enter_context(_peer(options))
            servers[peer.name] = partial(_ask, peer)
            versions = peer.details
        limits = Options(
            options.dtype, options.max_num_seqs, options.max_num_batched_tokens,
            block_size=options.block_size,
        )  # fmt: skip
        engine = OwnEngine(options.model, limits, options.num_requests)
        warmup = engine.warm_up()
        servers = {OURS: partial(open_loop.serve, engine.engine), **servers}
        before = engine.engine.stats().num_compilations
        saturation = _saturation(engine, options.repeats)
        conditions = _conditions(options, saturation["requests_per_second"])
        served = _measure(options, servers, conditions, engine.workload)
        compilations = engine.engine.stats().num_compilations - before
    if options.plot is not None:
        latency_report.draw(served, f"{options.model.name}, {options.dtype}", options.plot)
    return {
        "warmup": warmup,
        "peer": versions,
        "saturation": saturation,
        "compilations": compilations,
        "engines": latency_report.entries(served),
    }


def _peer(options: argparse.Namespace) -> Peer:
    return Peer("vllm_online", options.peer, options.model, options.dtype, options.max_num_seqs)


def _ask(peer: Peer, workload: Workload, arrivals: list[float]) -> list[Served]:
    times = peer.serve(workload, arrivals)
    return [
        Served(arrival, tuple(seconds), count)
        for arrival, (seconds, count) in zip(arrivals, times, strict=True)
    ]


def _saturation(engine: OwnEngine, repeats: int) -> dict[str, Any]:
    """Measure the rate of our engine when all requests arrive at once."""
    trials = [engine.continuous(engine.workload) for _ in range(repeats)]
    seconds = statistics.median(each.seconds for each in trials)
    return {
        "requests_per_second": round(len(engine.workload.prompts) / seconds, 4),
        "tokens_per_second": round(engine.workload.num_output_tokens / seconds, 2),
        "seconds": [round(each.seconds, 3) for each in trials],
    }


def _conditions(options: argparse.Namespace, saturation: float) -> list[Condition]:
    """Return the idle condition, then those of `--load`, then those of `--rates`."""
    load = options.load or ([] if options.rates else [LOAD])
    return [
        Condition(IDLE),
        *[Condition(f"{100 * each:g}% of saturation", each * saturation, each) for each in load],
        *[Condition(f"{each:g} a second", each) for each in options.rates or ()],
    ]


def _measure(
    options: argparse.Namespace,
    servers: dict[str, Serve],
    conditions: Sequence[Condition],
    workload: Workload,
) -> latency_report.Measured:
    """Run all conditions in turn in each repeat; all engines run a condition before the next."""
    runs: dict[str, Callable[[], list[Served]]] = {}
    keys: dict[str, tuple[str, Condition]] = {}
    for condition in conditions:
        for name, serve in servers.items():
            run = (
                partial(_one_by_one, serve, workload, options.idle_requests)
                if condition.rate is None
                else partial(serve, workload, poisson(condition.rate, options.num_requests))
            )
            label = f"{name}, {condition.name}"
            runs[label], keys[label] = run, (name, condition)
    done = turns.take(runs, options.repeats, latency_report.one_line)
    return {keys[label]: repeats for label, repeats in done.items()}


def _one_by_one(serve: Serve, workload: Workload, count: int) -> list[Served]:
    """Serve the first requests, each after the previous one has finished."""
    return [serve(each, [0.0])[0] for each in workload.batches(1)[:count]]


def _parser() -> argparse.ArgumentParser:
    parser = command_line.new_parser("latency", __doc__)
    add = parser.add_argument
    command_line.add_model(parser, "a .gguf file; without --peer also a folder")
    command_line.add_dtype(parser)
    command_line.add_peer(parser, "vllm, torch, transformers and gguf")
    add("--load", type=float, nargs="+", help=f"fractions of our saturation rate; default: {LOAD}")
    add("--rates", type=float, nargs="+", help="requests per second")
    command_line.add_num_requests(parser)
    add("--idle-requests", type=int, default=8, help="requests that are served one at a time")
    command_line.add_repeats(parser, 3)
    command_line.add_max_num_seqs(parser)
    command_line.add_max_num_batched_tokens(parser)
    command_line.add_block_size(parser)
    add("--cold", action="store_true", help="measure the start of fresh processes instead")
    command_line.add_outputs(parser, plot="the distributions")
    return parser


if __name__ == "__main__":
    sys.exit(main())
