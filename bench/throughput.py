"""Output tokens per second of pagedjax and of a peer, on the same requests, in turn.

    python -m bench.throughput --model FILE.gguf --peer PEER/bin/python --json FILE --plot FILE

All requests arrive at once and decode greedily to a length that is given for each. The peer is
Hugging Face transformers with static batching, in an environment of its own; `--static` also runs
our own engine with static batches. On a shared machine, read the ratios: each repeat runs all
engines one after the other, so that they meet the same noise.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench import bar_chart, header, report, trial
from bench.own_engine import Options, OwnEngine
from bench.peer import Peer
from bench.trial import Trial
from pagedjax.one_line import exit_status

Contenders = dict[str, Callable[[], Trial]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or non-zero after one line on stderr."""
    options = _parser().parse_args(arguments)
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    return exit_status(partial(_run, options), options.debug)


def _run(options: argparse.Namespace) -> None:
    _check(options)
    engine = OwnEngine(options.model, _engine_options(options), options.num_requests)
    warmup = engine.warm_up()
    trials = _take_turns(_contenders(options, engine), options.repeats)
    result = _result(options, engine, warmup, trials)
    print("\n".join(header.lines(result["header"]) + report.lines(result)))
    _write(options, result)
    if options.profile:
        print(engine.profile(), file=sys.stderr)


def _check(options: argparse.Namespace) -> None:
    """Whatever can be refused before minutes of measuring is refused here."""
    for name in ("repeats", "num_requests", "batch"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1")
    if options.static and options.batch > options.max_num_seqs:
        raise ValueError(
            f"a static batch of {options.batch} cannot run together with "
            f"--max-num-seqs {options.max_num_seqs}"
        )
    if not options.model.exists():
        raise ValueError(f"there is no model at {options.model}")
    for path in (options.json, options.plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise ValueError(f"there is no folder for {path}")
    if options.plot is not None:
        bar_chart.check()
    if options.peer is not None:
        _peer(options).check()


def _engine_options(options: argparse.Namespace) -> Options:
    return Options(
        options.dtype, options.max_num_seqs, options.max_num_batched_tokens, options.num_blocks
    )


def _peer(options: argparse.Namespace) -> Peer:
    return Peer(options.peer, options.model, options.dtype, options.batch)


def _contenders(options: argparse.Namespace, engine: OwnEngine) -> Contenders:
    """What runs in each repeat, by name; ours first, as ratios are ours over the others'."""
    found: Contenders = {"pagedjax, continuous": engine.continuous}
    batches = f"static batches of {options.batch}"
    if options.static:
        found[f"pagedjax, {batches}"] = partial(engine.static, options.batch)
    if options.peer is not None:
        found[_peer_name(options)] = partial(_peer(options).run, engine.workload)
    return found


def _peer_name(options: argparse.Namespace) -> str:
    return f"transformers, static batches of {options.batch}"


def _take_turns(contenders: Contenders, repeats: int) -> dict[str, list[Trial]]:
    trials: dict[str, list[Trial]] = {name: [] for name in contenders}
    for repeat in range(repeats):
        for name, run in contenders.items():
            done = run()
            trials[name].append(done)
            print(
                f"repeat {repeat + 1} of {repeats}: {name}: {done.tokens_per_second:.1f} tokens/s",
                file=sys.stderr,
            )
    return trials


def _result(
    options: argparse.Namespace,
    engine: OwnEngine,
    warmup: dict[str, Any],
    trials: dict[str, list[Trial]],
) -> dict[str, Any]:
    engines = [report.engine_entry(name, each) for name, each in trials.items()]
    workload, peer = engine.workload, trials.get(_peer_name(options))
    ours = next(iter(trials.values()))
    return {
        "header": header.describe(),
        "parameters": _parameters(options) | {"num_blocks": engine.num_blocks},
        "workload": {
            "requests": len(workload.prompts),
            "prompt_tokens": workload.num_prompt_tokens,
            "output_tokens": workload.num_output_tokens,
        },
        "warmup": warmup,
        "engines": engines,
        "ratios": report.ratios(engines),
        "agreement": trial.agreement(ours[-1].outputs, peer[-1].outputs) if peer else None,
    }


def _parameters(options: argparse.Namespace) -> dict[str, Any]:
    names = (
        "dtype", "repeats", "num_requests", "batch", "max_num_seqs", "max_num_batched_tokens",
        "num_blocks",
    )  # fmt: skip
    # The model's name without its folder: a result must not tell where a machine keeps its files.
    return {"model": options.model.name} | {name: getattr(options, name) for name in names}


def _write(options: argparse.Namespace, result: dict[str, Any]) -> None:
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if options.plot is not None:
        spreads = {each["name"]: each["tokens_per_second"] for each in result["engines"]}
        found = result["header"]
        title = (
            f"{result['parameters']['model']}, {options.dtype}\n{found['cpu']}, {found['device']}"
        )
        bar_chart.draw(spreads, "output tokens/s", title, options.plot)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.throughput", description=(__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    add("--model", type=Path, required=True, help=".gguf file; without --peer also a folder")
    add("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    add("--peer", metavar="PYTHON", help="interpreter with torch, transformers and gguf")
    add("--repeats", type=int, default=3)
    add("--num-requests", type=int, default=64)
    add("--batch", type=int, default=64, help="requests of a static batch, the peer's and ours")
    add("--static", action="store_true", help="also run our engine with static batches")
    add("--max-num-seqs", type=int, default=64)
    add("--max-num-batched-tokens", type=int)
    add("--num-blocks", type=int, help="default: so many that nothing is preempted")
    add("--json", type=Path, help="write everything that was measured")
    add("--plot", type=Path, help="draw the medians (needs matplotlib)")
    add("--profile", action="store_true", help="then print where the host's time goes, to stderr")
    add("--debug", action="store_true", help="show the traceback of an error")
    return parser


if __name__ == "__main__":
    sys.exit(main())
