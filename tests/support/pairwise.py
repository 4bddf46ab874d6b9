"""Pairwise testing: few cases that contain every pair of values of different factors."""

from itertools import combinations, product
from typing import Any


def pairwise(factors: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """A covering array of strength two, built greedily; deterministic, not always minimal."""
    names = list(factors)
    missing = {
        ((one, i), (two, j))
        for one, two in combinations(names, 2)
        for i, j in product(range(len(factors[one])), range(len(factors[two])))
    }
    cases = []
    while missing:
        (one, i), (two, j) = min(missing, key=str)
        chosen = {one: i, two: j}
        for name in names:
            if name not in chosen:
                chosen[name] = max(
                    range(len(factors[name])),
                    key=lambda value: len(_met(chosen | {name: value}, names) & missing),
                )
        missing -= _met(chosen, names)
        cases.append({name: factors[name][chosen[name]] for name in names})
    return cases


def every(factors: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Every combination of values."""
    return [dict(zip(factors, values, strict=True)) for values in product(*factors.values())]


def _met(chosen: dict[str, int], names: list[str]) -> set[tuple]:
    known = [(name, chosen[name]) for name in names if name in chosen]
    return set(combinations(known, 2))
