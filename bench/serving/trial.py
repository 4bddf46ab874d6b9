"""One timed run of a workload by any engine, with continuous or static batching."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.serving.workload import Workload

# (prompts, output lengths) -> output ids of each
Generate = Callable[[Sequence[list[int]], Sequence[int]], list[list[int]]]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Trial:
    """Result of one run. `outputs` has the requested tokens only."""

    seconds: float
    outputs: list[list[int]]
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        """Requested output tokens over the time from the first add to the last finish."""
        return sum(map(len, self.outputs)) / self.seconds


def continuous(workload: Workload, generate: Generate, clock: Clock = time.perf_counter) -> Trial:
    """Run all requests at once, each until its own output length."""
    start = clock()
    outputs = generate(workload.prompts, workload.output_lens)
    return Trial(clock() - start, _checked(outputs, workload.output_lens))


def static(
    workload: Workload, batch: int, generate: Generate, clock: Clock = time.perf_counter
) -> Trial:
    """Run batches in order of arrival, each until its longest output is complete.

    Tokens that a request generates beyond its own length take time and are not counted.
    """
    outputs: list[list[int]] = []
    start = clock()
    for part in workload.batches(batch):
        longest = max(part.output_lens)
        rows = generate(part.prompts, [longest] * len(part.prompts))
        outputs += [row[:length] for row, length in zip(rows, part.output_lens, strict=True)]
    return Trial(clock() - start, _checked(outputs, workload.output_lens))


def agreement(ours: Sequence[list[int]], theirs: Sequence[list[int]]) -> dict[str, int]:
    """Count equal ids up to each request's first difference, and requests without a difference."""
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
    """Raise ValueError for output lengths other than requested: such runs are not comparable."""
    lengths = list(map(len, outputs))
    if lengths != list(output_lens):
        wrong = next(i for i, (a, b) in enumerate(zip(lengths, output_lens, strict=True)) if a != b)
        raise ValueError(
            f"request {wrong} was given {lengths[wrong]} tokens instead of {output_lens[wrong]}"
        )
    return outputs
