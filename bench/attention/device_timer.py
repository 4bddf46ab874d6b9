"""Time of a call on the device: medians over blocks that are long enough for the clock.

On a GPU, a call of microseconds is shorter than its dispatch. Several calls are therefore chained
inside one program, where each takes its queries from the previous output, and programs are queued
without waiting. On a CPU calls are dispatched one by one, and the dispatch, tens of microseconds,
is part of the measured time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax

MIN_BLOCK = 0.02  # shortest block in seconds
CHAINED = 32  # most calls in one program on a GPU


@dataclass(frozen=True)
class Timing:
    """Seconds of one call. `blocks` has the mean of each block."""

    blocks: tuple[float, ...]
    calls_per_block: int

    @property
    def median(self) -> float:
        """Median over the blocks."""
        return statistics.median(self.blocks)

    def to_json(self) -> dict[str, Any]:
        """Return median and spread in seconds."""
        return {
            "median_s": self.median,
            "min_s": min(self.blocks),
            "max_s": max(self.blocks),
            "blocks": len(self.blocks),
            "calls_per_block": self.calls_per_block,
        }


def chain(step: Callable[[Any, Any, Any], Any], length: int) -> Callable[[Any, Any], Any]:
    """Compile `length` steps into one program: (value, operands) -> value.

    step: (index, value, operands) -> value of the same type. A step must read data that depends on
    `index` or `value`; otherwise XLA would hoist the computation out of the loop.
    """
    return jax.jit(
        lambda value, operands: lax.fori_loop(0, length, lambda i, v: step(i, v, operands), value)
    )


class Timed:
    """A program that maps a value to one of the same type, warmed up and calibrated.

    calls: how many measured calls one run of the program makes.
    """

    def __init__(self, program: Callable[[Any], Any], value: Any, calls: int) -> None:
        self._program, self._calls = program, calls
        self._value = jax.block_until_ready(program(value))  # compiles
        self._count = 1
        seconds = self._run_once()
        while seconds < MIN_BLOCK:
            # A single short reading is unreliable, so the count grows in steps.
            self._count *= min(10, max(2, int(1.2 * MIN_BLOCK / max(seconds, 1e-9)) + 1))
            seconds = self._run_once()

    def block(self) -> float:
        """Run one block and return the mean seconds of a call."""
        return self._run_once() / (self._count * self._calls)

    @property
    def calls_per_block(self) -> int:
        """Number of calls in one block."""
        return self._count * self._calls

    def _run_once(self) -> float:
        start, value = time.perf_counter(), self._value
        for _ in range(self._count):
            value = self._program(value)
        self._value = jax.block_until_ready(value)
        return time.perf_counter() - start


def take_turns(contenders: dict[str, Timed], repeats: int) -> dict[str, Timing]:
    """Run one block of each in turn, so that noise of the machine affects all of them."""
    blocks: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, timed in contenders.items():
            blocks[name].append(timed.block())
    return {
        name: Timing(tuple(blocks[name]), timed.calls_per_block)
        for name, timed in contenders.items()
    }


def measure(program: Callable[[Any], Any], value: Any, calls: int, repeats: int) -> Timing:
    """Time one program on its own."""
    return take_turns({"it": Timed(program, value, calls)}, repeats)["it"]
