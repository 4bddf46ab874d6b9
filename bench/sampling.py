"""Time of sampling a token: `python -m bench.sampling [--rows N] [--vocab V,V] [--json FILE]`.

Times the sampler alone, on given logits, for every kind of sampling and vocabulary size. Each
number is the median over blocks of a block's median run; the kinds take turns within a block, so
that noise of the machine affects all of them. With --model, also prints the sampler's share of a
decode step with the same number of rows.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.report import command_line, header
from pagedjax import Engine, EngineConfig, SamplingParams, load_checkpoint
from pagedjax.checks.one_line import exit_status
from pagedjax.sample.logprobs import token_logprobs
from pagedjax.sample.penalties import Adjustments, Tables, adjust
from pagedjax.sample.sampler import SamplingArrays, greedy, sample

BLOCKS = 5
HISTORY = 1024  # tokens that the penalties read
LOGPROBS = 5
PROMPT_TOKENS = 32
# Sampling parameters of the timed decode steps.
STEPS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top-k + top-p": {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or non-zero after one line on stderr."""
    parser = command_line.new_parser("sampling", __doc__)
    parser.add_argument("--rows", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--vocab", default="49152,128256", help="sizes; default: %(default)s")
    command_line.add_repeats(parser, 5, f"runs in each of {BLOCKS} blocks")
    parser.add_argument("--model", type=Path, help="also time decode steps of this model")
    command_line.add_outputs(parser)
    options = parser.parse_args(arguments)
    return exit_status(partial(_run, options), options.debug)


def _run(options: argparse.Namespace) -> None:
    if options.rows < 1 or options.repeats < 1:
        raise ValueError("--rows and --repeats must be at least 1")
    described = header.describe()
    print("\n".join(header.lines(described)))
    results = []
    for vocab in map(int, options.vocab.split(",")):
        results += _alone(options.rows, vocab, options.repeats)
    steps = _steps(options.model, options.rows, options.repeats) if options.model else []
    result = {"header": described, "rows": options.rows, "sampling": results, "steps": steps}
    command_line.write_json(options.json, result)


def _alone(rows: int, vocab: int, repeats: int) -> list[dict[str, Any]]:
    print(f"\nsampling alone, {rows} rows of {vocab:,} logits")
    found = []
    compiled, seconds = {}, {}
    for name, (function, args) in sorts(rows, vocab).items():
        start = time.perf_counter()
        compiled[name] = partial(jax.jit(function).lower(*args).compile(), *args)
        seconds[name] = time.perf_counter() - start
    for name, times in interleaved(compiled, repeats).items():
        found.append({"vocab": vocab, "name": name, **times, "compile_s": seconds[name]})
        print(f"  {name:<24} {_text(times)}   compiled in {seconds[name]:.1f} s")
    return found


def sorts(rows: int, vocab: int) -> dict[str, tuple[Callable, tuple]]:
    """Return for each kind of sampling what a step runs on its logits: a function and arguments."""
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(0, 3, (rows, vocab)).astype(np.float32))
    history = jnp.asarray(rng.integers(0, vocab, (rows, HISTORY)).astype(np.int32))
    tables = Tables(history=history, edits=jnp.zeros((rows, vocab)))
    none = jnp.zeros(rows)
    wanted = none + 0.5
    adjustments = Adjustments(none + 1.2, wanted, wanted, edited=none > 0, logprobs=none > 0)
    lengths = jnp.full(rows, HISTORY, jnp.int32)
    positions = lengths // 2

    def penalized(logits: jax.Array, arrays: SamplingArrays, *more: Any) -> jax.Array:
        return sample(adjust(logits, arrays, *more), arrays, positions)

    def with_logprobs(logits: jax.Array, arrays: SamplingArrays, positions: jax.Array) -> Any:
        tokens = sample(logits, arrays, positions)
        return tokens, token_logprobs(logits, tokens, min(LOGPROBS, vocab))

    def drawn(**params: float) -> tuple[Callable, tuple]:
        return sample, (logits, _arrays(rows, **params), positions)

    plain = _arrays(rows)
    return {
        "greedy": (greedy, (logits,)),
        "temperature": drawn(),
        "min-p": drawn(min_p=0.05),
        "top-k 40": drawn(top_k=40),
        "top-p 0.95": drawn(top_p=0.95),
        "top-k 40 + top-p 0.95": drawn(top_k=40, top_p=0.95),
        "penalties": (penalized, (logits, plain, adjustments, tables, lengths)),
        f"logprobs={LOGPROBS}": (with_logprobs, (logits, plain, positions)),
    }


def interleaved(
    functions: dict[str, Callable[[], Any]], repeats: int
) -> dict[str, dict[str, float]]:
    """Return milliseconds of each function: median, minimum and maximum of its blocks' medians."""
    medians: dict[str, list[float]] = {name: [] for name in functions}
    for block in range(BLOCKS + 1):
        times: dict[str, list[float]] = {name: [] for name in functions}
        for _ in range(repeats):
            for name, function in functions.items():
                start = time.perf_counter()
                jax.block_until_ready(function())
                times[name].append(1e3 * (time.perf_counter() - start))
        if block:  # the first one warms up
            for name, each in times.items():
                medians[name].append(statistics.median(each))
    return {
        name: {"median_ms": statistics.median(each), "min_ms": min(each), "max_ms": max(each)}
        for name, each in medians.items()
    }


def _steps(model: Path, rows: int, repeats: int) -> list[dict[str, Any]]:
    """Time decode steps of an engine, and the share of them that the sampler alone takes."""
    config, params, _ = load_checkpoint(model)
    tokens = repeats * (BLOCKS + 1) + 4
    settings = EngineConfig(
        max_model_len=PROMPT_TOKENS + tokens, max_num_seqs=rows,
        max_num_batched_tokens=rows * PROMPT_TOKENS,  # all prompts in one step
    )  # fmt: skip
    engines = {}
    for name, options in STEPS.items():
        engine = Engine(config, params, settings)
        _fill(engine, rows, tokens, options)
        engines[name] = engine.step
    alone = sorts(rows, config.vocab_size)
    names = {name: "top-k 40 + top-p 0.95" if "+" in name else name for name in STEPS}
    functions = {
        name: partial(jax.jit(alone[sort][0]).lower(*alone[sort][1]).compile(), *alone[sort][1])
        for name, sort in names.items()
    }
    steps = interleaved(engines, repeats)
    samples = interleaved(functions, repeats)
    print(f"\ndecode steps of {model.name}, {rows} rows, and the sampler's share")
    found = []
    for name in STEPS:
        share = samples[name]["median_ms"] / steps[name]["median_ms"]
        found.append({"name": name, "step": steps[name], "sampling": samples[name], "share": share})
        print(f"  {name:<24} {_text(steps[name])}   {100 * share:.1f} %")
    return found


def _fill(engine: Engine, rows: int, tokens: int, options: dict[str, Any]) -> None:
    """Add requests and step until all of them decode."""
    wanted = SamplingParams(max_tokens=tokens, ignore_eos=True, **options)
    for row in range(rows):
        engine.add_request(str(row), [row % 100 + 1] * PROMPT_TOKENS, wanted)
    for _ in range(3):  # the prefill, and the first decode steps, which compile
        engine.step()


def _arrays(rows: int, *, top_k: int = 0, top_p: float = 1, min_p: float = 0) -> SamplingArrays:
    numbers = jnp.arange(rows, dtype=jnp.int32)
    return SamplingArrays(
        slots=numbers, num_prompt=jnp.full(rows, HISTORY // 2, jnp.int32),
        seeds=numbers.astype(jnp.uint32), samples=jnp.zeros(rows, jnp.uint32),
        temperature=jnp.full(rows, 0.8), top_k=jnp.full(rows, top_k, jnp.int32),
        top_p=jnp.full(rows, top_p, jnp.float32), min_p=jnp.full(rows, min_p, jnp.float32),
    )  # fmt: skip


def _text(times: dict[str, float]) -> str:
    return "{median_ms:8.2f} ms  ({min_ms:.2f} to {max_ms:.2f})".format(**times)


if __name__ == "__main__":
    sys.exit(main())
