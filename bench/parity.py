"""Difference between the log probability of a token when sampled and when scored.

    python -m bench.parity --model FILE.gguf [--peer PEER/bin/python] [--json FILE]

Policy-gradient training assumes that the ratio of both probabilities is 1. Prompts of mixed lengths
are continued in one batch at temperature 1 with fixed seeds; then `compute_logprobs` scores the
same tokens. The peer, Hugging Face transformers in its own environment, computes log probabilities
of the same outputs by its cached decode and by its full forward pass.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from bench.accuracy import parity_report
from bench.accuracy.parity_report import Logprobs
from bench.peers import peer_script
from bench.report import command_line, header
from bench.serving.own_engine import blocks_without_preemption
from bench.serving.workload import BLOCK_SIZE, END_ID, LONGEST, Workload, make_workload
from pagedjax import LLM, ModelConfig, SamplingParams, load_checkpoint
from pagedjax.checks.one_line import exit_status
from pagedjax.weights.params import Params

DTYPES = ("float32", "bfloat16")
OURS = "pagedjax, sampled - scored"
THEIRS = "transformers, cached decode - full forward"
BETWEEN = "pagedjax scored - transformers full forward"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or non-zero after one line on stderr."""
    options = _parser().parse_args(arguments)
    return exit_status(partial(_run, options), options.debug)


def _run(options: argparse.Namespace) -> None:
    _check(options)
    pairs, versions = [], None
    for dtype in options.dtypes:
        config, params, _ = load_checkpoint(options.model, dtype)
        outputs, sampled, scored = _ours(config, params, options)
        pairs.append(parity_report.entry(dtype, OURS, sampled, scored))
        if options.peer is not None:
            prompts = _workload(config, options).prompts
            cached, full, versions = _theirs(options, dtype, prompts, outputs)
            pairs.append(parity_report.entry(dtype, THEIRS, cached, full))
            pairs.append(parity_report.entry(dtype, BETWEEN, scored, full))
    result = {
        "header": header.describe(),
        "model": options.model.name,
        "prompts": options.num_prompts,
        "tokens": options.tokens,
        "temperature": 1.0,
        "peer": versions,
        "pairs": pairs,
    }
    print("\n".join(header.lines(result["header"]) + parity_report.lines(result)))
    command_line.write_json(options.json, result)


def _check(options: argparse.Namespace) -> None:
    """Refuse invalid options now, not after minutes of measuring."""
    command_line.check(options, ("num_prompts", "tokens"))
    if unknown := [each for each in options.dtypes if each not in DTYPES]:
        raise ValueError(f"--dtypes {','.join(unknown)} is unknown; supported: {','.join(DTYPES)}")


def _workload(config: ModelConfig, options: argparse.Namespace) -> Workload:
    prompts = make_workload(options.num_prompts, end_id=min(END_ID, config.vocab_size)).prompts
    return Workload(prompts, (options.tokens,) * len(prompts))


def _ours(
    config: ModelConfig, params: Params, options: argparse.Namespace
) -> tuple[list[list[int]], Logprobs, Logprobs]:
    """Return output ids, and their log probabilities as sampled and as scored by one engine."""
    workload = _workload(config, options)
    prompts, count = list(workload.prompts), options.num_prompts
    llm = LLM.from_params(
        config, params, max_model_len=LONGEST + options.tokens, max_num_seqs=count,
        block_size=BLOCK_SIZE, num_blocks=blocks_without_preemption(workload, count),
    )  # fmt: skip
    sampling = [
        SamplingParams(seed=seed, max_tokens=options.tokens, ignore_eos=True, logprobs=0)
        for seed in range(count)
    ]
    found = [each.outputs[0] for each in llm.generate(prompts, sampling, use_tqdm=False)]
    outputs = [each.token_ids for each in found]
    sampled = [
        [at[token].logprob for at, token in zip(each.logprobs or [], each.token_ids, strict=True)]
        for each in found
    ]
    lists = [prompt + output for prompt, output in zip(prompts, outputs, strict=True)]
    scored = [each[-options.tokens :] for each in llm.compute_logprobs(lists)]
    return outputs, np.array(sampled, np.float64), np.array(scored, np.float64)


def _theirs(
    options: argparse.Namespace,
    dtype: str,
    prompts: Sequence[list[int]],
    outputs: list[list[int]],
) -> tuple[Logprobs, Logprobs, dict[str, Any]]:
    """Return the peer's log probabilities by cached decode and full forward, and its versions."""
    given = {"prompts": prompts, "outputs": outputs}
    result = peer_script.call("hf_parity.py", options.peer, options.model, dtype, given)
    cached, full = (np.array(result.pop(name), np.float64) for name in ("cached", "full"))
    return cached, full, result


def _parser() -> argparse.ArgumentParser:
    parser = command_line.new_parser("parity", __doc__)
    add, names = parser.add_argument, command_line.listed(str)
    command_line.add_model(parser, "a .gguf file; without --peer also a folder")
    command_line.add_peer(parser)
    add("--dtypes", type=names, default=DTYPES, help=f"default: {','.join(DTYPES)}")
    add("--num-prompts", type=int, default=16, help="default: %(default)s")
    add("--tokens", type=int, default=64, help="sampled for each prompt; default: %(default)s")
    command_line.add_outputs(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
