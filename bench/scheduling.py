"""Host cost of a step: `python -m bench.scheduling [--json FILE]`.

Times `Scheduler.schedule` and `commit` for a full batch of decoding requests, with nothing on a
device, against the number of waiting requests and the size of the pool. Neither may matter.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench import header
from pagedjax.blocks import BlockPool
from pagedjax.one_line import exit_status
from pagedjax.request import Request
from pagedjax.sampling_params import SamplingParams
from pagedjax.scheduler import Scheduler

PROMPT_TOKENS = 100
STEPS = 200


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0, or non-zero after one line on stderr."""
    parser = argparse.ArgumentParser(prog="python -m bench.scheduling", description=__doc__)
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--debug", action="store_true")
    options = parser.parse_args(arguments)
    return exit_status(partial(_run, options), options.debug)


def _run(options: argparse.Namespace) -> None:
    rows = [
        {"waiting": waiting, "num_blocks": blocks, **_measure(options.running, waiting, blocks)}
        for waiting, blocks in ((0, 10_000), (1_000, 10_000), (100_000, 10_000), (100_000, 200_000))
    ]
    described = header.describe()
    print("\n".join(header.lines(described)))
    print(f"schedule + commit, {options.running} running requests, median of {STEPS} steps")
    for row in rows:
        print("waiting {waiting:>7}  blocks {num_blocks:>7}  {median_ms:.3f} ms".format(**row)
              + "  ({min_ms:.3f} to {max_ms:.3f})".format(**row))  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps({"header": described, "rows": rows}, indent=1) + "\n")


def _measure(running: int, waiting: int, num_blocks: int) -> dict[str, float]:
    scheduler = Scheduler(BlockPool(num_blocks, 16), running, running * PROMPT_TOKENS)
    for arrival in range(running + waiting):
        scheduler.add(_request(arrival))
    times = []
    for step in range(STEPS + 2):
        start = time.perf_counter()
        plan = scheduler.schedule()
        scheduler.commit(plan, [step % 1000] * len(plan.samplers))
        times.append(1e3 * (time.perf_counter() - start))
    times = times[2:]  # the first steps compute the prompts
    return {"median_ms": statistics.median(times), "min_ms": min(times), "max_ms": max(times)}


def _request(arrival: int) -> Request:
    return Request(
        id=str(arrival), arrival=arrival, tokens=[arrival % 1000] * PROMPT_TOKENS,
        num_prompt=PROMPT_TOKENS, params=SamplingParams(), seed=0, max_len=PROMPT_TOKENS + 1000,
        stop_ids=frozenset(), eos_ids=frozenset(),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
