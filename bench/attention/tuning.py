"""Search for the fastest tiles on this device, with a time limit.

Each candidate costs a compilation, so the search varies one coordinate at a time: first the block
with its warps and stages, with splits chosen by arithmetic, then the splits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bench.attention.paths import Where, with_tiles
from bench.attention.problem import Problem, exact
from bench.attention.roofline import QUERY, pool_dtype
from bench.attention.shapes import Case
from bench.attention.trial import chain_length, check, one_line
from pallas_kernels import tiles
from pallas_kernels.tiles import MAX_SPLITS, DecodeTiles, PrefillTiles

REPEATS = 3
# (block_tokens, num_warps, num_stages); likely ones first, because time may run out.
DECODE_BLOCKS = (
    (64, 4, 3), (64, 4, 4), (64, 4, 2), (128, 4, 2), (128, 8, 2), (128, 4, 3), (32, 4, 4),
    (32, 2, 4), (128, 8, 3), (64, 8, 3), (64, 2, 3),
)  # fmt: skip
SPLIT_FACTORS = (2.0, 0.5, 4.0, 0.25)  # of the splits chosen by arithmetic
# (rows, block_tokens, num_warps, num_stages)
PREFILL_TILES = (
    (128, 64, 8, 2), (128, 64, 8, 3), (64, 64, 4, 3), (128, 128, 8, 2), (64, 64, 4, 2),
    (64, 128, 4, 2), (128, 32, 8, 3), (128, 64, 4, 2), (64, 32, 4, 3), (256, 64, 8, 2),
)  # fmt: skip

Tiles = Any  # DecodeTiles or PrefillTiles
Measure = Callable[[Tiles], float]  # seconds of a call; raises if the tiles do not work


@dataclass
class Search:
    """State of a search. seconds: of each candidate that ran; notes: of each that did not."""

    measure: Measure
    deadline: float  # of time.monotonic
    best: Tiles | None = None
    seconds: dict[Tiles, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def try_all(self, candidates: Iterable[Tiles]) -> None:
        """Measure each candidate until the deadline."""
        for each in candidates:
            if each in self.seconds:
                continue
            if time.monotonic() > self.deadline:
                self.notes.append("out of time; the rest was not tried")
                return
            try:
                self.seconds[each] = self.measure(each)
            except Exception as error:  # skip candidates that do not compile
                self.notes.append(f"{_brief(each)}: {one_line(error)}")
                continue
            if self.best is None or self.seconds[each] < self.seconds[self.best]:
                self.best = each


def key_of(case: Case, dtype: str, size: int) -> str:
    """Return the key under which kernels look up tiles; several cases may share one."""
    heads, dtypes = case.heads, (QUERY, pool_dtype(dtype))
    if case.kind == "prefill":
        return tiles.prefill_key(heads.width, heads.group, *dtypes)
    context = -(-max(case.contexts) // size) * size  # as wide as the table
    return tiles.decode_key(case.rows, heads.num_kv_heads, heads.width, context, *dtypes)


def search(problem: Problem, where: Where, seconds: float) -> Search:
    """Find the fastest tiles in about `seconds`."""
    wanted = exact(problem, problem.layers - 1)

    def measure(chosen: Tiles) -> float:
        found, prepared = check(problem, with_tiles(chosen), where, wanted)
        if prepared is None:
            raise ValueError(f"{found['status']}: {found['reason']}")
        timed = prepared.timed(problem, chain_length(problem.case, problem.dtype, where))
        return sorted(timed.block() for _ in range(REPEATS))[REPEATS // 2]

    return explore(problem, where, measure, time.monotonic() + seconds)


def explore(problem: Problem, where: Where, measure: Measure, deadline: float) -> Search:
    """Run `search` with a given measure."""
    done = Search(measure, deadline)
    if problem.case.kind == "prefill":
        group = problem.case.heads.group
        done.try_all(PrefillTiles(*each) for each in PREFILL_TILES if each[0] >= group)
        return done
    cores = tiles.device_of(where.device).cores
    context = problem.tables.shape[1] * problem.size
    programs = problem.case.rows * problem.case.heads.num_kv_heads
    splits = tiles.choose_splits(programs, context, cores)
    done.try_all(
        DecodeTiles(block, splits, num_warps=warps, num_stages=stages)
        for block, warps, stages in DECODE_BLOCKS
    )
    if done.best is not None:
        fitting = (int(splits * factor) for factor in SPLIT_FACTORS)
        base = done.best
        done.try_all(replace(base, splits=n) for n in fitting if 1 <= n <= MAX_SPLITS)
    return done


def merged(device_name: str, found: dict[str, Tiles]) -> dict[str, Tiles]:
    """Return `found` and the entries of the device's table for other keys."""
    kinds = {"decode": DecodeTiles, "prefill": PrefillTiles}
    old = {key: kinds[key.split()[0]](**fields) for key, fields in tiles.tuned(device_name).items()}
    return {**old, **found}


def outcome(key: str, done: Search) -> dict[str, Any]:
    """Return the outcome as values for JSON."""
    return {
        "key": key,
        "best": None if done.best is None else asdict(done.best),
        "seconds": {_brief(each): value for each, value in done.seconds.items()},
        "notes": done.notes,
    }


def outcome_lines(key: str, done: Search) -> list[str]:
    """Format the outcome as lines of text."""
    if done.best is None:
        return [f"{key}: nothing ran", *(f"  {note}" for note in done.notes)]
    fastest, slowest = done.seconds[done.best], max(done.seconds.values())
    return [
        f"{key}: {_brief(done.best)}, {1e6 * fastest:.1f} us; the slowest of "
        f"{len(done.seconds)} took {1e6 * slowest:.1f}",
        *(f"  {note}" for note in done.notes),
    ]


def _brief(chosen: Tiles) -> str:
    given = {name: value for name, value in asdict(chosen).items() if value is not None}
    return json.dumps(given).replace('"', "")
