"""Checks of the Pallas kernels in interpret mode, on machines without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bench.attention.paths import INTERPRETED, PATHS
from bench.attention.problem import exact, make_problem
from bench.attention.shapes import DTYPES, Case, Heads
from bench.attention.trial import check, where_it_runs

HEADS = Heads("G=3 D=64", 6, 2, 64)
CONTEXTS = (1, 33, 70, 128)  # one key, edges of pages, and more than a kernel's block
QUERIES = {"decode": (1, 1, 1, 1), "prefill": (1, 20, 70, 40)}


def checks(paths: Sequence[str], kinds: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield for each path its difference from the reference, or why it did not run."""
    where = where_it_runs(interpret=True)
    for kind in kinds:
        case = Case(HEADS, kind, "small", CONTEXTS, QUERIES[kind])
        for dtype in DTYPES:
            problem = make_problem(case, dtype, size=16, layers=2)
            wanted = exact(problem, problem.layers - 1)
            for name in paths:
                if name in INTERPRETED:
                    found, _ = check(problem, PATHS[name], where, wanted)
                    yield {"path": name, "kind": kind, "dtype": dtype, **found}
