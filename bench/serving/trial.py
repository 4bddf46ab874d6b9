"""One timed run of a workload, by continuous or by static batching, whatever the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.serving.workload import Workload

# (prompts, tokens to generate for each) -> output ids of each
Generate = Callable[[Sequence[list[int]], Sequence[int]], list[list[int]]]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Trial:
    """What one run took and gave. `outputs` has only the ids that were asked for."""

    seconds: float
    outputs: list[list[int]]
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        """Output tokens that count, over the time from the first add to the last finish."""
        return sum(map(len, self.outputs)) / self.seconds


def continuous(workload: Workload, generate: Generate, clock: Clock = time.perf_counter) -> Trial:
    """All requests at once, each until its own length."""
    start = clock()
    outputs = generate(workload.prompts, workload.output_lens)
    return Trial(clock() - start, _checked(outputs, workload.output_lens))


def static(
    workload: Workload, batch: int, generate: Generate, clock: Clock = time.perf_counter
) -> Trial:
    """Batches in order of arrival; a batch runs until its longest output is done.

    The tokens that a request generates beyond its own length cost time and do not count.
    """
    outputs: list[list[int]] = []
    start = clock()
    for part in workload.batches(batch):
        longest = max(part.output_lens)
        rows = generate(part.prompts, [longest] * len(part.prompts))
        outputs += [row[:length] for row, length in zip(rows, part.output_lens, strict=True)]
    return Trial(clock() - start, _checked(outputs, workload.output_lens))


def agreement(ours: Sequence[list[int]], theirs: Sequence[list[int]]) -> dict[str, int]:
    """How many ids are the same up to each request's first difference, and in how many requests
    all are.
    """
    same = [_common_prefix(one, other) for one, other in zip(ours, theirs, strict=True)]
    return {
        "ids": sum(same),
        "of_ids": sum(map(len, ours)),
        "requests": sum(count == len(one) for count, one in zip(same, ours, strict=True)),
        "of_requests": len(ours),
    }


def _common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _checked(outputs: list[list[int]], output_lens: Sequence[int]) -> list[list[int]]:
    """A run that gave other lengths than asked for is not comparable with the others."""
    lengths = list(map(len, outputs))
    if lengths != list(output_lens):
        wrong = next(i for i, (a, b) in enumerate(zip(lengths, output_lens, strict=True)) if a != b)
        raise ValueError(
            f"request {wrong} was given {lengths[wrong]} tokens instead of {output_lens[wrong]}"
        )
    return outputs
