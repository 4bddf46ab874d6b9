"""Throughput and step times of the engine with a known model's shapes and random weights.

    python -m bench.engine_random --model llama-3-8b --batches 1,32,128 --json FILE

For each batch size, all prompts arrive at once and decode greedily to one length. The load runs
twice with different prompts: the first run compiles, the second is measured. Steps in which every
request decodes are also timed separately. The host time includes one output per token.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from bench.report import command_line, header
from bench.serving import random_model
from pagedjax import Engine, EngineConfig, SamplingParams
from pagedjax.checks.one_line import exit_status

SETTLED = 2  # steps left out at each end of the decoding, because one further step is in flight


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or non-zero after one line on stderr."""
    options = _parser().parse_args(arguments)
    return exit_status(partial(_run, options), options.debug)


def _run(options: argparse.Namespace) -> None:
    batches = [int(each) for each in options.batches.split(",")]
    if min(batches) < 1 or options.prompt < 1 or options.output < 2 * SETTLED + 2:
        least = 2 * SETTLED + 2
        raise ValueError(f"--batches and --prompt must be at least 1, --output at least {least}")
    command_line.check_targets(options.json)
    result: dict[str, Any] = {"header": header.describe(), "batches": []}
    result["parameters"] = {
        name: value for name, value in vars(options).items() if name not in ("json", "debug")
    }
    print("\n".join(header.lines(result["header"])))
    config, params = random_model.make_model(options.model, options.dtype)
    engine = Engine(config, params, _engine_config(options, max(batches)))
    for batch in batches:
        started = time.perf_counter()
        _load(engine, batch, options, seed=2 * batch)
        compiled = time.perf_counter() - started
        before = engine.stats()
        found = _load(engine, batch, options, seed=2 * batch + 1)
        after = engine.stats()
        found["compilations"] = after.num_compilations - before.num_compilations
        steps = after.steps - before.steps
        found["host_ms_a_step"] = 1e3 * (after.host_s - before.host_s) / steps
        found["exposed_ms_a_step"] = 1e3 * (after.exposed_s - before.exposed_s) / steps
        found |= {"batch": batch, "first_run_s": compiled}
        result["batches"].append(found)
        print(_line(found), flush=True)
        # After each batch size, so that a run that is stopped keeps its results so far.
        command_line.write_json(options.json, result)


def _engine_config(options: argparse.Namespace, most: int) -> EngineConfig:
    length = options.prompt + options.output
    blocks = -(-length // options.block_size) + 1
    return EngineConfig(
        max_model_len=length, block_size=options.block_size, num_blocks=most * blocks + blocks,
        max_num_seqs=most, attention=options.attention, kv_cache_dtype=options.kv_cache_dtype,
        enable_prefix_caching=False,
    )  # fmt: skip


def _load(engine: Engine, batch: int, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    params = SamplingParams(temperature=0.0, max_tokens=options.output, ignore_eos=True)
    config = engine.model_config
    for index, ids in enumerate(random_model.prompts(config, batch, options.prompt, seed)):
        engine.add_request(f"{seed}-{index}", ids, params)
    start = time.perf_counter()
    first: float | None = None
    alive: set[str] = set()
    steps: list[tuple[float, bool]] = []  # seconds of a step, and whether every request decoded
    lengths: dict[str, int] = {}
    while engine.has_unfinished_requests():
        before = time.perf_counter()
        outputs = engine.step()
        after = time.perf_counter()
        alive |= {each.request_id for each in outputs}
        steps.append((after - before, len(alive) == batch == len(outputs)))
        first = after - start if outputs and first is None else first
        lengths |= {each.request_id: len(each.outputs[0].token_ids) for each in outputs}
    seconds = time.perf_counter() - start
    full = [each for each, all_decode in steps if all_decode][SETTLED:-SETTLED]
    tokens = sum(lengths.values())
    return {
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "first_token_s": first,
        "decode_step_s": {
            "median": statistics.median(full), "min": min(full), "max": max(full),
            "steps": len(full),
        },
        "decode_tokens_per_second": batch / statistics.median(full),
    }  # fmt: skip


def _line(found: dict[str, Any]) -> str:
    step = {name: 1e3 * found["decode_step_s"][name] for name in ("median", "min", "max")}
    return (
        f"batch {found['batch']:>4}: {found['tokens_per_second']:,.1f} tokens/s with prefill; "
        f"first token {1e3 * found['first_token_s']:.1f} ms; decode step {step['median']:.2f} ms "
        f"({step['min']:.2f} - {step['max']:.2f}), {found['decode_tokens_per_second']:,.1f} "
        f"tokens/s; host {found['host_ms_a_step']:.2f} ms per step, "
        f"{found['exposed_ms_a_step']:.2f} ms of it not hidden by the device; first run, with "
        f"compilation, {found['first_run_s']:.1f} s"
    )


def _parser() -> argparse.ArgumentParser:
    parser = command_line.new_parser("engine_random", __doc__)
    add = parser.add_argument
    add("--model", choices=tuple(random_model.CONFIGS), default="llama-3-8b")
    command_line.add_dtype(parser, choices=None)
    add("--batches", default="1,32,128", help="numbers of requests that run together")
    add("--prompt", type=int, default=128, help="tokens of a prompt")
    add("--output", type=int, default=64, help="tokens that each request generates")
    add("--attention", default="auto")
    add("--kv-cache-dtype", default="auto")
    command_line.add_block_size(parser)
    command_line.add_outputs(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
