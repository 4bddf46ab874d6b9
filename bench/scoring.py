"""Throughput of `compute_logprobs`, compared with a plain Hugging Face forward pass.

    python -m bench.scoring --model FILE.gguf [--peer PEER/bin/python] [--json FILE]

The lists are the prompts of `bench.serving.workload`, in float32. The peer pads them to the longest
and computes the padding too. "At equal padding": our lists are extended with random tokens to the
longest, so that both engines compute the same number of tokens. "As they are": ours are scored
without padding. Lists with a common prefix share work: 8 prompts with 8 completions each are scored
with and without prefix caching.

On a shared machine, read the ratios: each repeat runs all contenders one after the other, so that
noise affects all of them. If other processes occupy whole cores for minutes, read the ratios of CPU
seconds: they exclude waiting, but include the spinning of threads that wait for each other.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bench.accuracy import scoring_report
from bench.accuracy.scoring_report import ALONE, DTYPE, EQUAL, PEER, RAGGED, SHARING
from bench.accuracy.token_lists import COMPLETIONS, GROUPS, TokenLists, branching, extended
from bench.peers import peer_script
from bench.report import command_line, header
from bench.serving import turns
from bench.serving.trial import Trial
from bench.serving.workload import BLOCK_SIZE, END_ID, LONGEST, make_workload
from pagedjax import LLM, ModelConfig, load_checkpoint
from pagedjax.checks.one_line import exit_status
from pagedjax.schedule.blocks import with_watermark
from pagedjax.weights.params import Params

DETAILS = ("torch", "transformers", "python", "threads")  # of the peer, for the result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or non-zero after one line on stderr."""
    options = _parser().parse_args(arguments)
    return exit_status(partial(_run, options), options.debug)


def _run(options: argparse.Namespace) -> None:
    command_line.check(options, ("repeats", "num_lists", "batch"))
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
        **scoring_report.summary(trials),
    }
    print("\n".join(header.lines(result["header"]) + scoring_report.lines(result)))
    command_line.write_json(options.json, result)


def _engine(
    config: ModelConfig, params: Params, options: argparse.Namespace, prefix_caching: bool
) -> LLM:
    """Return an engine whose pool holds all lists at once."""
    rows = max(options.num_lists, GROUPS * COMPLETIONS)
    return LLM.from_params(
        config, params, max_model_len=LONGEST, block_size=BLOCK_SIZE, max_num_seqs=rows,
        num_blocks=with_watermark(rows * -(-LONGEST // BLOCK_SIZE)),
        max_num_batched_tokens=options.max_num_batched_tokens,
        enable_prefix_caching=prefix_caching,
    )  # fmt: skip


def _score(llm: LLM, lists: TokenLists) -> Trial:
    """Time one call. `outputs` of the trial are the scored lists, whose tokens are counted."""
    before = llm.engine.stats().num_compilations
    start, cpu = time.perf_counter(), time.process_time()
    scores = llm.compute_logprobs(lists)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    compilations = llm.engine.stats().num_compilations - before
    details = {"cpu_seconds": round(cpu, 4), "compilations": compilations, "logprobs": scores}
    return Trial(seconds, lists, details)


def _peer(options: argparse.Namespace, lists: TokenLists) -> Trial:
    """Time one pass of the peer in its own process; loading the model is not timed."""
    found = peer_script.call(
        "hf_scoring.py", options.peer, options.model, DTYPE, {"lists": lists},
        ["--batch", str(options.batch)],
    )  # fmt: skip
    details = {name: found[name] for name in (*DETAILS, "cpu_seconds", "logprobs")}
    return Trial(found["seconds"], lists, details)


def _take_turns(contenders: dict[str, Callable[[], Trial]], repeats: int) -> dict[str, list[Trial]]:
    """Run ours once, which compiles; then run all contenders in each repeat."""
    for name, run in contenders.items():
        if name != PEER:
            run()
    return turns.take(contenders, repeats, lambda done: f"{done.seconds:.2f} s")


def _parameters(options: argparse.Namespace) -> dict[str, Any]:
    names = ("repeats", "num_lists", "batch", "max_num_batched_tokens")
    return {"dtype": DTYPE} | command_line.parameters(options, names)


def _parser() -> argparse.ArgumentParser:
    parser = command_line.new_parser("scoring", __doc__)
    add = parser.add_argument
    command_line.add_model(parser, "a .gguf file; without --peer also a folder")
    command_line.add_peer(parser)
    command_line.add_repeats(parser, 3)
    add("--num-lists", type=int, default=64, help="default: %(default)s")
    add("--batch", type=int, default=64, help="lists per forward pass of the peer")
    command_line.add_max_num_batched_tokens(parser)
    command_line.add_outputs(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
