"""Accuracy of each KV pool format: `python -m bench.kv_accuracy --model PATH [--json FILE]`.

Scores fixed texts with a float32 KV pool and with each other format, and prints how much the log
probabilities of the texts' tokens and the perplexity change.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

import numpy as np

from bench.accuracy import pool_report
from bench.accuracy.texts import TEXTS
from bench.report import command_line, header
from pagedjax import LLM, ModelConfig, load_checkpoint
from pagedjax.checks.one_line import exit_status
from pagedjax.text.encode import encode
from pagedjax.weights.params import Params

EXACT = "float32"
MEASURED = ("bfloat16", "int8", "fp8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or non-zero after one line on stderr."""
    parser = command_line.new_parser("kv_accuracy", __doc__)
    command_line.add_model(parser)
    command_line.add_outputs(parser)
    options = parser.parse_args(arguments)
    return exit_status(partial(_run, options), options.debug)


def _run(options: argparse.Namespace) -> None:
    command_line.check(options, ())
    config, params, tokenizer = load_checkpoint(options.model, "float32")
    token_lists = [encode(tokenizer, text) for text in TEXTS]
    exact = _logprobs(config, params, token_lists, EXACT)
    pools = [pool_report.entry(config, EXACT, exact, exact)]
    for dtype in MEASURED:
        found = _logprobs(config, params, token_lists, dtype)
        pools.append(pool_report.entry(config, dtype, found, exact))
    described = header.describe()
    counts = {"texts": len(TEXTS), "tokens": sum(map(len, token_lists)), "scored": exact.size}
    print("\n".join(header.lines(described)))
    print("{texts} texts, {tokens:,} tokens, {scored:,} of them scored".format(**counts))
    print("\n".join(pool_report.lines(pools)))
    model = options.model.name
    result = {"header": described, "model": model, "dtype": "float32", **counts, "pools": pools}
    command_line.write_json(options.json, result)


def _logprobs(
    config: ModelConfig, params: Params, token_lists: Sequence[Sequence[int]], dtype: str
) -> np.ndarray:  # [tokens of all lists, without the first of each list]
    """Score the lists with an engine whose KV pool has this dtype."""
    longest = max(map(len, token_lists)) + 1
    llm = LLM.from_params(
        config, params, max_model_len=longest, max_num_seqs=len(token_lists),
        max_num_batched_tokens=512, num_blocks=len(token_lists) * (longest // 16 + 1),
        kv_cache_dtype=dtype,
    )  # fmt: skip
    return np.concatenate(llm.compute_logprobs(token_lists)).astype(np.float64)


if __name__ == "__main__":
    sys.exit(main())
