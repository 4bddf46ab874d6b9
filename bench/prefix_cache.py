"""Time saved by a prefix cache hit: `python -m bench.prefix_cache --model PATH [--json FILE]`.

Prefills each prompt of 1,040 tokens cold, then again with its first 1,024 tokens in the cache, and
prints the time to first token of both.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial

from bench.report import command_line, header
from pagedjax import LLM, SamplingParams
from pagedjax.checks.one_line import exit_status

PROMPT_TOKENS = 1040


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or non-zero after one line on stderr."""
    parser = command_line.new_parser("prefix_cache", __doc__)
    command_line.add_model(parser)
    command_line.add_dtype(parser, "float32", choices=None)
    command_line.add_repeats(parser, 5, "prompts, each computed cold and with a cached prefix")
    command_line.add_outputs(parser)
    options = parser.parse_args(arguments)
    return exit_status(partial(_run, options), options.debug)


def _run(options: argparse.Namespace) -> None:
    command_line.check(options, ())
    llm = LLM(options.model, options.dtype, max_model_len=2048, max_num_seqs=1, num_blocks=512)
    _first_token_seconds(llm, 0)  # these two calls compile the shapes of both cases
    _first_token_seconds(llm, 0)
    seeds = range(1, options.repeats + 1)
    cold, warm = zip(
        *[(_first_token_seconds(llm, s), _first_token_seconds(llm, s)) for s in seeds], strict=True
    )
    result = {
        "cold_s": cold, "warm_s": warm, "ratio": statistics.median(cold) / statistics.median(warm),
        "compilations": llm.engine.stats().num_compilations,
    }  # fmt: skip
    described = header.describe()
    print("\n".join(header.lines(described)))
    for name, times in (("cold", cold), ("1,024 tokens cached", warm)):
        spread = f"{min(times):.3f} to {max(times):.3f}"
        print(f"{name:>20}  {statistics.median(times):.3f} s to the first token  ({spread})")
    print(f"{'ratio of medians':>20}  {result['ratio']:.1f} x")
    command_line.write_json(options.json, {"header": described, **result})


def _first_token_seconds(llm: LLM, seed: int) -> float:
    draw = random.Random(seed)
    prompt = [draw.randrange(3, 49000) for _ in range(PROMPT_TOKENS)]
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    start = time.perf_counter()
    llm.generate([prompt], params, use_tqdm=False)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
