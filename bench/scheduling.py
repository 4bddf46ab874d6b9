"""Host time of a step: `python -m bench.scheduling [--json FILE]`.

Times `Scheduler.schedule` and `commit`, and the packing between them, for a full batch of decoding
requests without a device, by number of waiting requests and by pool size. Neither should matter.
The rest of the host's work, which is not timed, is the call of the compiled programs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial

from bench.report import command_line, header
from pagedjax.checks.one_line import exit_status
from pagedjax.sampling_params import SamplingParams
from pagedjax.schedule.blocks import BlockPool
from pagedjax.schedule.request import Request
from pagedjax.schedule.scheduler import Scheduler
from pagedjax.step.batch import Buckets, Packer

PROMPT_TOKENS, BLOCK_SIZE = 100, 16
MAX_LEN = PROMPT_TOKENS + 1000
STEPS = 200
SIZES = ((0, 10_000), (1_000, 10_000), (100_000, 10_000), (100_000, 200_000))  # waiting, blocks


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or non-zero after one line on stderr."""
    parser = command_line.new_parser("scheduling", __doc__)
    parser.add_argument("--running", type=int, default=256, help="default: %(default)s requests")
    command_line.add_outputs(parser)
    options = parser.parse_args(arguments)
    return exit_status(partial(_run, options), options.debug)


def _run(options: argparse.Namespace) -> None:
    rows = [
        {"waiting": waiting, "num_blocks": blocks, **measure(options.running, waiting, blocks)}
        for waiting, blocks in SIZES
    ]
    described = header.describe()
    print("\n".join(header.lines(described)))
    print(f"{options.running} running requests, medians of {STEPS} steps")
    for row in rows:
        print("waiting {waiting:>7}  blocks {num_blocks:>7}".format(**row)
              + "  schedule and commit {median_ms:.3f} ms".format(**row)
              + " ({min_ms:.3f} to {max_ms:.3f}), pack {pack_ms:.3f} ms".format(**row))  # fmt: skip
    command_line.write_json(options.json, {"header": described, "rows": rows})


def measure(running: int, waiting: int, num_blocks: int) -> dict[str, float]:
    """Return milliseconds of a step; ValueError if the pool is too small to avoid preemption."""
    budget = running * PROMPT_TOKENS
    scheduler = Scheduler(BlockPool(num_blocks, BLOCK_SIZE), running, budget)
    width = -(-MAX_LEN // BLOCK_SIZE)
    packer = Packer(Buckets(running, budget), num_blocks, BLOCK_SIZE, width)
    for arrival in range(running + waiting):
        scheduler.add(_request(arrival))
    times, packing = [], []
    for step in range(STEPS + 2):
        start = time.perf_counter()
        plan = scheduler.schedule()
        planned = time.perf_counter()
        batch = packer.pack(plan, packer.buckets.fit(plan))
        packer.sampling(plan, batch.logit_slots)
        packed = time.perf_counter()
        scheduler.commit(plan, [step % 1000] * len(plan.samplers))
        times.append(1e3 * (time.perf_counter() - packed + planned - start))
        packing.append(1e3 * (packed - planned))
    if scheduler.num_preemptions:
        raise ValueError(f"{num_blocks} blocks are too few: {running} requests were preempted")
    times, packing = times[2:], packing[2:]  # the first steps are prefill
    return {
        "median_ms": statistics.median(times), "min_ms": min(times), "max_ms": max(times),
        "pack_ms": statistics.median(packing),
    }  # fmt: skip


def _request(arrival: int) -> Request:
    return Request(
        id=str(arrival), arrival=arrival, tokens=[arrival % 1000] * PROMPT_TOKENS,
        num_prompt=PROMPT_TOKENS, params=SamplingParams(), seed=0, max_len=MAX_LEN,
        stop_ids=frozenset(), eos_ids=frozenset(),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
