"""Seconds of a call on the device: medians of blocks that are long enough to be read off a clock.

On a GPU a call of microseconds is shorter than its dispatch, so several are chained inside one
program, each taking its queries from the output before, and chains are queued without waiting.
On a CPU calls are dispatched one by one: dispatch takes tens of microseconds there too, and is
part of what is measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax

MIN_BLOCK = 0.02  # seconds that one reading of the clock covers at least
CHAINED = 32  # calls in a program on a GPU


@dataclass(frozen=True)
class Timing:
    """Seconds of one call. One entry a block in `blocks`; each is that block's mean."""

    blocks: tuple[float, ...]
    calls_per_block: int

    @property
    def median(self) -> float:
        """Of the blocks."""
        return statistics.median(self.blocks)

    def to_json(self) -> dict[str, Any]:
        """Median and spread, in seconds."""
        return {
            "median_s": self.median,
            "min_s": min(self.blocks),
            "max_s": max(self.blocks),
            "blocks": len(self.blocks),
            "calls_per_block": self.calls_per_block,
        }


def chain(step: Callable[[Any, Any, Any], Any], length: int) -> Callable[[Any, Any], Any]:
    """One program of `length` steps: (value, operands) -> value.

    step: (index, value, operands) -> value of the same type. What a step reads must depend on
    `index` or on `value`, or XLA would compute it once, before the loop.
    """
    return jax.jit(
        lambda value, operands: lax.fori_loop(0, length, lambda i, v: step(i, v, operands), value)
    )


class Timed:
    """A program that maps a value to one of the same type, warmed up and calibrated.

    calls: how many calls of what is measured the program makes.
    """

    def __init__(self, program: Callable[[Any], Any], value: Any, calls: int) -> None:
        self._program, self._calls = program, calls
        self._value = jax.block_until_ready(program(value))  # compiles
        self._count = 1
        seconds = self._run_once()
        while seconds < MIN_BLOCK:
            # A single short reading is unsure, so the count grows in steps.
            self._count *= min(10, max(2, int(1.2 * MIN_BLOCK / max(seconds, 1e-9)) + 1))
            seconds = self._run_once()

    def block(self) -> float:
        """Mean seconds of a call, over one block."""
        return self._run_once() / (self._count * self._calls)

    @property
    def calls_per_block(self) -> int:
        """Calls that a block's mean is taken over."""
        return self._count * self._calls

    def _run_once(self) -> float:
        start, value = time.perf_counter(), self._value
        for _ in range(self._count):
            value = self._program(value)
        self._value = jax.block_until_ready(value)
        return time.perf_counter() - start


def take_turns(contenders: dict[str, Timed], repeats: int) -> dict[str, Timing]:
    """A block of each in turn, so that all meet the same noise of a shared machine."""
    blocks: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, timed in contenders.items():
            blocks[name].append(timed.block())
    return {
        name: Timing(tuple(blocks[name]), timed.calls_per_block)
        for name, timed in contenders.items()
    }


def measure(program: Callable[[Any], Any], value: Any, calls: int, repeats: int) -> Timing:
    """`take_turns` of one contender."""
    return take_turns({"it": Timed(program, value, calls)}, repeats)["it"]
