"""Output tokens per second of pagedjax and of other engines on the same requests.

    python -m bench.throughput --model FILE.gguf --peer PEER/bin/python \\
        --peers hf_static hf_continuous vllm --single --json FILE --plot FILE

All requests arrive at once and decode greedily to a given length each. The peers run in their own
Python environment: Hugging Face transformers with static and with continuous batching, and vLLM's
CPU build. `--static` also runs our engine with static batches; `--single` also runs one request
alone, the first prompt with 128 output tokens. On a shared machine, read the ratios: each repeat
runs all engines one after the other, so that noise affects all of them. Every engine stays alive
and sleeps while the others run; all are warmed up before the first repeat.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from bench.peers.peer import OFFLINE, Peer
from bench.report import bar_chart, command_line, header, report
from bench.serving import trial, turns
from bench.serving.own_engine import Options, OwnEngine
from bench.serving.trial import Trial
from bench.serving.workload import Workload
from pagedjax.checks.one_line import exit_status

SINGLE_TOKENS = 128
ALONE = ", one request alone"
Contenders = dict[str, Callable[[Workload], Trial]]
Trials = dict[str, list[Trial]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or non-zero after one line on stderr."""
    options = _parser().parse_args(arguments)
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    return exit_status(partial(_run, options), options.debug)


def _run(options: argparse.Namespace) -> None:
    _check(options)
    with ExitStack() as stack:
        peers = [stack.enter_context(each) for each in _peers(options)]
        engine = OwnEngine(options.model, _engine_options(options), options.num_requests)
        warmup = engine.warm_up()
        contenders = _contenders(options, engine, peers)
        found = _measure(options, contenders, engine.workload)
    result = _result(options, engine, [each.name for each in peers], found) | {"warmup": warmup}
    print("\n".join(header.lines(result["header"]) + report.lines(result)))
    _write(options, result)
    if options.profile:
        print(engine.profile(), file=sys.stderr)


def _check(options: argparse.Namespace) -> None:
    """Refuse invalid options now, not after minutes of measuring."""
    counts = ("repeats", "num_requests", "batch", "max_num_seqs", "block_size")
    command_line.check(options, counts)
    if options.static and options.batch > options.max_num_seqs:
        raise ValueError(
            f"a static batch of {options.batch} cannot run together with "
            f"--max-num-seqs {options.max_num_seqs}"
        )
    if options.num_blocks is not None and options.num_blocks < 1:
        raise ValueError("--num-blocks must be at least 1")
    if options.peer is None and options.peers is not None:
        raise ValueError("--peers needs --peer, the interpreter that runs them")


def _engine_options(options: argparse.Namespace) -> Options:
    return Options(
        options.dtype, options.max_num_seqs, options.max_num_batched_tokens, options.num_blocks,
        block_size=options.block_size,
    )  # fmt: skip


def _peers(options: argparse.Namespace) -> Iterator[Peer]:
    """Yield the requested peers; each is started and warmed up when it is reached."""
    if options.peer is None:
        return
    for kind in options.peers or OFFLINE[:1]:
        rows = options.batch if kind == "hf_static" else options.max_num_seqs
        yield Peer(kind, options.peer, options.model, options.dtype, rows)


def _contenders(options: argparse.Namespace, engine: OwnEngine, peers: list[Peer]) -> Contenders:
    """Return what runs in each repeat, by name; ours first: ratios are ours over the others'."""
    found: Contenders = {"pagedjax, continuous": engine.continuous}
    if options.static:
        name = f"pagedjax, static batches of {options.batch}"
        found[name] = partial(engine.static, options.batch)
    return found | {each.name: each.run for each in peers}


def _measure(
    options: argparse.Namespace, contenders: Contenders, workload: Workload
) -> tuple[Trials, Trials]:
    """Return the trials of the workload, and those of one request alone if `--single` is given."""
    runs = {name: partial(run, workload) for name, run in contenders.items()}
    if options.single:
        alone = workload.first(SINGLE_TOKENS)
        runs |= {name + ALONE: partial(run, alone) for name, run in contenders.items()}
    trials = turns.take(
        runs, options.repeats, lambda done: f"{done.tokens_per_second:.1f} tokens/s"
    )
    return {name: trials[name] for name in contenders}, {
        name: trials[name + ALONE] for name in contenders if options.single
    }


def _result(
    options: argparse.Namespace,
    engine: OwnEngine,
    peers: Sequence[str],
    found: tuple[Trials, Trials],
) -> dict[str, Any]:
    trials, single = found
    entries = [report.engine_entry(name, each) for name, each in trials.items()]
    alone = [report.single_entry(name, each) for name, each in single.items()]
    workload = engine.workload
    ours = next(iter(trials.values()))[-1]
    names = (
        "dtype", "repeats", "num_requests", "batch", "max_num_seqs", "max_num_batched_tokens",
        "block_size",
    )  # fmt: skip
    return {
        "header": header.describe(),
        "parameters": command_line.parameters(options, names) | {"num_blocks": engine.num_blocks},
        "workload": {
            "requests": len(workload.prompts),
            "prompt_tokens": workload.num_prompt_tokens,
            "output_tokens": workload.num_output_tokens,
        },
        "engines": entries,
        "ratios": report.ratios(entries),
        "single": {"engines": alone, "ratios": report.ratios(alone)} if alone else None,
        "agreement": {
            name: trial.agreement(ours.outputs, trials[name][-1].outputs) for name in peers
        },
    }


def _write(options: argparse.Namespace, result: dict[str, Any]) -> None:
    command_line.write_json(options.json, result)
    if options.plot is not None:
        spreads = {each["name"]: each["tokens_per_second"] for each in result["engines"]}
        found = result["header"]
        title = (
            f"{result['parameters']['model']}, {options.dtype}\n{found['cpu']}, {found['device']}"
        )
        bar_chart.draw(spreads, "output tokens/s", title, options.plot)


def _parser() -> argparse.ArgumentParser:
    parser = command_line.new_parser("throughput", __doc__)
    add = parser.add_argument
    command_line.add_model(parser, "a .gguf file; without --peer also a folder")
    command_line.add_dtype(parser)
    command_line.add_peer(parser)
    add("--peers", nargs="+", choices=OFFLINE, help=f"engines of --peer; default: {OFFLINE[0]}")
    command_line.add_repeats(parser, 3)
    command_line.add_num_requests(parser)
    add("--batch", type=int, default=64, help="requests of a static batch, the peer's and ours")
    add("--static", action="store_true", help="also run our engine with static batches")
    add("--single", action="store_true", help=f"also run one request alone, {SINGLE_TOKENS} tokens")
    command_line.add_max_num_seqs(parser)
    command_line.add_max_num_batched_tokens(parser)
    command_line.add_block_size(parser)
    add("--num-blocks", type=int, help="default: enough that no request is preempted")
    command_line.add_outputs(parser, plot="the medians")
    add("--profile", action="store_true", help="then print a profile of the host to stderr")
    return parser


if __name__ == "__main__":
    sys.exit(main())
