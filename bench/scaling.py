"""Throughput of pagedjax by number of requests and by context length.

    python -m bench.scaling --model PATH [--requests 64 256 1024] [--contexts 256 1024 4096]
        [--json FILE] [--plot FILE]

Requests of equal size arrive at once. In the first sweep, those beyond `--max-num-seqs` wait, and
the time to schedule a step is measured by the number of waiting requests. In the second sweep,
prompt and output of each of `--rows` requests add up to the context length; the decoding rate
counts the tokens after the last prefill. Outputs are short, so that a sweep takes minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bench.report import command_line, header, line_chart
from bench.serving import scaling_report, turns
from bench.serving.own_engine import Options, OwnEngine, greedy, stats_between
from bench.serving.schedule_timer import ScheduleTimer, by_waiting
from bench.serving.workload import BLOCK_SIZE, Workload, make_even_workload
from pagedjax.checks.one_line import exit_status

# The rates of a sweep. With waiting requests, no step is known to be decode only.
RATES = {
    "requests": ("output_per_second", "all_per_second"),
    "contexts": ("output_per_second", "all_per_second", "decoding_per_second"),
}
Case = dict[str, Any]
Sweeps = dict[str, dict[int, Workload]]  # by sweep: its x values and their workloads


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or non-zero after one line on stderr."""
    options = _parser().parse_args(arguments)
    return exit_status(partial(_run, options), options.debug)


def _run(options: argparse.Namespace) -> None:
    _check(options)
    engine = OwnEngine(options.model, _engine_options(options), 1)
    warmup = engine.warm_up()
    sweeps = _workloads(options, engine.end_id)
    runs: dict[str, Callable[[], Case]] = {
        f"{name} {size}": partial(measure, engine, workload)
        for name, sweep in sweeps.items()
        for size, workload in sweep.items()
    }
    done = turns.take(
        runs, options.repeats, lambda case: f"{case['output_per_second']:.1f} tokens/s"
    )
    result = _result(options, sweeps, done) | {"warmup": warmup}
    print("\n".join(header.lines(result["header"]) + scaling_report.lines(result)))
    command_line.write_json(options.json, result)
    if options.plot is not None:
        title = f"{options.model.name}, {options.dtype}"
        line_chart.draw(scaling_report.panels(result), title, options.plot)


def _result(
    options: argparse.Namespace, sweeps: Sweeps, done: dict[str, list[Case]]
) -> dict[str, Any]:
    samples = [each for cases in done.values() for case in cases for each in case.pop("schedule")]
    names = (
        "dtype", "requests", "contexts", "prompt_tokens", "output_tokens", "rows", "max_num_seqs",
        "max_num_batched_tokens", "repeats",
    )  # fmt: skip
    found: dict[str, Any] = {
        name: [
            _entry(size, workload, done[f"{name} {size}"], RATES[name])
            for size, workload in sweep.items()
        ]
        for name, sweep in sweeps.items()
    }
    return {
        "header": header.describe(),
        "parameters": command_line.parameters(options, names),
        **found,
        "schedule": by_waiting(samples),
    }


def _check(options: argparse.Namespace) -> None:
    """Refuse invalid options now, not after minutes of measuring."""
    counts = ("prompt_tokens", "output_tokens", "rows", "max_num_seqs", "repeats")
    command_line.check(options, counts)
    if min(options.requests) < 1:
        raise ValueError("--requests must be at least 1")
    if min(options.contexts) <= options.output_tokens:
        raise ValueError(f"--contexts must exceed --output-tokens {options.output_tokens}")


def _engine_options(options: argparse.Namespace) -> Options:
    """Size the pool for the running requests of either sweep, with some blocks to spare."""
    short = options.prompt_tokens + options.output_tokens
    longest = max(*options.contexts, short)
    blocks = max(
        options.max_num_seqs * -(-short // BLOCK_SIZE), options.rows * -(-longest // BLOCK_SIZE)
    )
    return Options(
        options.dtype,
        max(options.max_num_seqs, options.rows),
        options.max_num_batched_tokens,
        num_blocks=blocks + blocks // 16 + options.max_num_seqs,
        max_model_len=longest + 1,
    )


def _workloads(options: argparse.Namespace, end_id: int) -> Sweeps:
    output = options.output_tokens
    return {
        "requests": {
            each: make_even_workload(each, options.prompt_tokens, output, end_id)
            for each in options.requests
        },
        "contexts": {
            each: make_even_workload(options.rows, each - output, output, end_id)
            for each in options.contexts
        },
    }


def measure(
    engine: OwnEngine, workload: Workload, clock: Callable[[], float] = time.perf_counter
) -> Case:
    """Run the workload once; return rates in tokens/s, statistics, and times of each `schedule`."""
    engine.engine.reset_prefix_cache()
    before = engine.engine.stats()
    for index, (prompt, length) in enumerate(
        zip(workload.prompts, workload.output_lens, strict=True)
    ):
        engine.engine.add_request(str(index), prompt, greedy(length))
    came: list[float] = []  # seconds from the start to each output token
    begun: set[str] = set()
    all_begun, start = 0.0, clock()
    with ScheduleTimer(engine.engine) as timer:
        while engine.engine.has_unfinished_requests():
            outputs = engine.engine.step()
            now = clock() - start
            came += [now] * sum(len(each.outputs[0].delta_token_ids) for each in outputs)
            if new := {each.request_id for each in outputs} - begun:
                begun |= new
                all_begun = now
    return {
        **rates(came, all_begun, workload.num_prompt_tokens),
        **stats_between(before, engine.engine.stats()),
        "schedule": timer.samples,
    }


def rates(came: Sequence[float], all_begun: float, num_prompt_tokens: int) -> dict[str, Any]:
    """Return tokens per second: of outputs, of prompts and outputs, and of decoding.

    came: seconds at which each output token came. all_begun: when the last request had its first
    token; the decoding rate counts the later tokens, and is None without any.
    """
    end, late = came[-1], [each for each in came if each > all_begun]
    return {
        "seconds": round(end, 4),
        "output_per_second": round(len(came) / end, 2),
        "all_per_second": round((num_prompt_tokens + len(came)) / end, 2),
        "decoding_per_second": round(len(late) / (end - all_begun), 2) if late else None,
    }


def _entry(
    size: int, workload: Workload, cases: Sequence[Case], names: Sequence[str]
) -> dict[str, Any]:
    medians = {
        name: statistics.median(case[name] for case in cases)
        for name in names
        if cases[0][name] is not None
    }
    return {
        "size": size,
        "requests": len(workload.prompts),
        "tokens_each": len(workload.prompts[0]) + workload.output_lens[0],
        "rates": medians,
        "repeats": list(cases),
    }


def _parser() -> argparse.ArgumentParser:
    parser = command_line.new_parser("scaling", __doc__)
    add = parser.add_argument
    command_line.add_model(parser)
    command_line.add_dtype(parser)
    add("--requests", type=int, nargs="+", default=[64, 256, 1024], help="of the first sweep")
    add("--contexts", type=int, nargs="+", default=[256, 1024, 4096], help="of the second sweep")
    add("--prompt-tokens", type=int, default=64, help="of a request in the first sweep")
    add("--output-tokens", type=int, default=16, help="of every request")
    add("--rows", type=int, default=8, help="requests of the second sweep")
    command_line.add_max_num_seqs(parser)
    command_line.add_max_num_batched_tokens(parser)
    command_line.add_repeats(parser, 1)
    command_line.add_outputs(parser, plot="both sweeps")
    return parser


if __name__ == "__main__":
    sys.exit(main())
