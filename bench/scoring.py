"""Tokens per second of `compute_logprobs` and of a plain Hugging Face forward, in turn.

    python -m bench.scoring --model FILE.gguf [--peer PEER/bin/python] [--json FILE]

The lists are the prompts of `bench.serving.workload`, in float32. The peer pads them to the longest
and computes the padding too. "At equal padding" our lists are extended to the longest with further
tokens, so that both compute as many; "as they are" ours are scored without any padding. Lists that
begin alike share the work: 8 prompts with 8 completions each are scored with and without prefix
caching.

On a shared machine, read the ratios: each repeat runs all one after the other, so that they meet
the same noise. Where others take whole cores for minutes, read those of CPU seconds: they count
the work and not the waiting, though also the spinning of a thread that waits for its sibling.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers import peer_script
from bench.report import command_line, header, report
from bench.serving import turns
from bench.serving.own_engine import BLOCK_SIZE
from bench.serving.trial import Trial
from bench.serving.workload import END_ID, FIRST_ID, LONGEST, SEED, make_workload
from pagedjax import LLM, ModelConfig, load_checkpoint
from pagedjax.checks.one_line import exit_status
from pagedjax.schedule.blocks import with_watermark
from pagedjax.weights.params import Params

DTYPE = "float32"
GROUPS, COMPLETIONS = 8, 8  # prompts that are shared, and lists that begin with each
SHARED_LEN, OWN_LEN = 192, 64  # tokens of such a prompt, and of a completion
EQUAL, RAGGED, PEER = "pagedjax, extended lists", "pagedjax, as they are", "transformers, padded"
SHARING, ALONE = "8 x 8 lists, shared prefixes", "8 x 8 lists, no prefix caching"
DETAILS = ("torch", "transformers", "python", "threads")  # of the peer
COLUMNS = ("lists", "tokens/s", "min - max", "seconds", "CPU s", "tokens", "compiled")
TokenLists = list[list[int]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0, or non-zero after one line on stderr."""
    options = _parser().parse_args(arguments)
    return exit_status(partial(_run, options), options.debug)


def _run(options: argparse.Namespace) -> None:
    _check(options)
    config, params, _ = load_checkpoint(options.model, DTYPE)
    end = min(END_ID, config.vocab_size)
    ragged = list(make_workload(options.num_lists, end_id=end).prompts)
    shared = branching(end)
    ours, alone = (_engine(config, params, options, caching) for caching in (True, False))
    contenders: dict[str, Callable[[], Trial]] = {
        EQUAL: partial(_score, ours, extended(ragged, end)),
        RAGGED: partial(_score, ours, ragged),
    }
    if options.peer is not None:
        contenders[PEER] = partial(_peer, options, ragged)
    contenders[SHARING] = partial(_score, ours, shared)
    contenders[ALONE] = partial(_score, alone, shared)
    trials = _take_turns(contenders, options.repeats)
    result = {
        "header": header.describe(),
        "parameters": _parameters(options),
        "workload": {
            "lists": len(ragged),
            "tokens": sum(map(len, ragged)),
            "padded_tokens": len(ragged) * max(map(len, ragged)),
        },
        **summary(trials),
    }
    print("\n".join(header.lines(result["header"]) + lines(result)))
    command_line.write_json(options.json, result)


def _check(options: argparse.Namespace) -> None:
    """Whatever can be refused before minutes of measuring is refused here."""
    command_line.check(options, ("repeats", "num_lists", "batch"))
    if options.peer is not None:
        peer_script.check(options.peer, options.model)


def extended(lists: TokenLists, end_id: int) -> TokenLists:
    """Each list continued with random ids to the length of the longest."""
    rng, longest = random.Random(SEED + 1), max(map(len, lists))
    return [
        each + [rng.randrange(FIRST_ID, end_id) for _ in range(longest - len(each))]
        for each in lists
    ]


def branching(end_id: int) -> TokenLists:
    """`COMPLETIONS` lists that begin with each of `GROUPS` prompts, a prompt's together."""
    rng = random.Random(SEED + 2)

    def drawn(count: int) -> list[int]:
        return [rng.randrange(FIRST_ID, end_id) for _ in range(count)]

    prompts = [drawn(SHARED_LEN) for _ in range(GROUPS)]
    return [prompt + drawn(OWN_LEN) for prompt in prompts for _ in range(COMPLETIONS)]


def _engine(
    config: ModelConfig, params: Params, options: argparse.Namespace, prefix_caching: bool
) -> LLM:
    """An engine in which all lists fit at once."""
    rows = max(options.num_lists, GROUPS * COMPLETIONS)
    return LLM.from_params(
        config, params, max_model_len=LONGEST, block_size=BLOCK_SIZE, max_num_seqs=rows,
        num_blocks=with_watermark(rows * -(-LONGEST // BLOCK_SIZE)),
        max_num_batched_tokens=options.max_num_batched_tokens,
        enable_prefix_caching=prefix_caching,
    )  # fmt: skip


def _score(llm: LLM, lists: TokenLists) -> Trial:
    """One timed call. What a trial calls outputs are here the lists whose tokens count."""
    before = llm.engine.stats().num_compilations
    start, cpu = time.perf_counter(), time.process_time()
    scores = llm.compute_logprobs(lists)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    compilations = llm.engine.stats().num_compilations - before
    details = {"cpu_seconds": round(cpu, 4), "compilations": compilations, "logprobs": scores}
    return Trial(seconds, lists, details)


def _peer(options: argparse.Namespace, lists: TokenLists) -> Trial:
    """One timed pass of the peer in a process of its own; loading the model is not timed."""
    found = peer_script.call(
        "hf_scoring.py", options.peer, options.model, DTYPE, {"lists": lists},
        ["--batch", str(options.batch)],
    )  # fmt: skip
    details = {name: found[name] for name in (*DETAILS, "cpu_seconds", "logprobs")}
    return Trial(found["seconds"], lists, details)


def _take_turns(contenders: dict[str, Callable[[], Trial]], repeats: int) -> dict[str, list[Trial]]:
    """All contenders in each repeat; ours once more before, for their programs to be compiled."""
    for name, run in contenders.items():
        if name != PEER:
            run()
    return turns.take(contenders, repeats, lambda done: f"{done.seconds:.2f} s")


def summary(trials: dict[str, list[Trial]]) -> dict[str, Any]:
    """Rates, and ratios within each repeat. Trials without a peer give no ratios to it."""
    peer = trials.get(PEER)
    logprobs = {name: each[0].details["logprobs"] for name, each in trials.items()}
    moved = peer and max(
        float(np.abs(np.array(ours, np.float64) - theirs).max(initial=0.0))
        for ours, theirs in zip(logprobs[RAGGED], logprobs[PEER], strict=True)
    )
    return {
        "engines": [_entry(name, each) for name, each in trials.items()],
        "at_equal_padding": _speedup(peer, trials[EQUAL]) if peer else None,
        "as_they_are": _speedup(peer, trials[RAGGED]) if peer else None,
        "prefix_sharing": _speedup(trials[ALONE], trials[SHARING]),
        "max_abs_difference": moved,
    }


def _speedup(slow: Sequence[Trial], fast: Sequence[Trial]) -> dict[str, Any]:
    """How many times as fast, and how many times less work, in each repeat and by their median."""
    pairs = list(zip(slow, fast, strict=True))
    ratios = [round(a.seconds / b.seconds, 3) for a, b in pairs]
    cpu = [round(a.details["cpu_seconds"] / b.details["cpu_seconds"], 3) for a, b in pairs]
    return {
        "median": round(statistics.median(ratios), 3),
        "repeats": ratios,
        "cpu_median": round(statistics.median(cpu), 3),
        "cpu_repeats": cpu,
    }


def _said(speedup: dict[str, Any]) -> str:
    return f"{speedup['median']:.2f} x; in CPU seconds {speedup['cpu_median']:.2f} x"


def _entry(name: str, trials: Sequence[Trial]) -> dict[str, Any]:
    entry = report.engine_entry(name, trials)
    for repeat in entry["repeats"]:
        del repeat["logprobs"]  # thousands of numbers that belong to no report
    return entry | {"tokens": sum(map(len, trials[0].outputs))}


def lines(result: dict[str, Any]) -> list[str]:
    """The table for people, and what it says."""
    workload = result["workload"]
    rows = [COLUMNS] + [_row(each) for each in result["engines"]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return [
        f"{result['parameters']['model']}, {DTYPE}: {workload['lists']} lists, "
        f"{workload['tokens']:,} tokens, {workload['padded_tokens']:,} with padding",
        *table,
        *_remarks(result),
    ]


def _remarks(result: dict[str, Any]) -> list[str]:
    remarks = []
    if equal := result["at_equal_padding"]:
        ragged = result["as_they_are"]
        remarks += [
            f"pagedjax over transformers at equal padding: {_said(equal)}",
            f"pagedjax over transformers, lists as they are: {_said(ragged)}",
            f"log probabilities differ by at most {result['max_abs_difference']:.1e}",
        ]
    remarks.append(f"shared prefixes: {_said(result['prefix_sharing'])}")
    if count := report.num_compilations(result):
        remarks.append(
            f"WARNING: {count} PROGRAM(S) WERE COMPILED WHILE THE CLOCK RAN; THESE NUMBERS ARE VOID"
        )
    return remarks


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    rate, repeats = entry["tokens_per_second"], entry["repeats"]
    counts = [each.get("compilations") for each in repeats]
    compiled = "" if None in counts else str(sum(counts))
    return (
        entry["name"],
        f"{rate['median']:.1f}",
        f"{rate['min']:.1f} - {rate['max']:.1f}",
        f"{statistics.median(each['seconds'] for each in repeats):.2f}",
        f"{statistics.median(each['cpu_seconds'] for each in repeats):.2f}",
        f"{entry['tokens']:,}",
        compiled,
    )


def _parameters(options: argparse.Namespace) -> dict[str, Any]:
    names = ("repeats", "num_lists", "batch", "max_num_batched_tokens")
    # The model's name without its folder: a result must not tell where a machine keeps its files.
    return {"model": options.model.name, "dtype": DTYPE} | {
        name: getattr(options, name) for name in names
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.scoring", description=(__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    command_line.add_model(parser, "a .gguf file; without --peer also a folder")
    add("--peer", metavar="PYTHON", help="interpreter with torch, transformers and gguf")
    add("--repeats", type=int, default=3)
    add("--num-lists", type=int, default=64)
    add("--batch", type=int, default=64, help="lists per forward of the peer")
    add("--max-num-batched-tokens", type=int)
    add("--json", type=Path, help="write everything that was measured")
    add("--debug", action="store_true", help="show the traceback of an error")
    return parser


if __name__ == "__main__":
    sys.exit(main())
