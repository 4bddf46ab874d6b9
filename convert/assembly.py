"""Assemble params from a source's tensors: check everything first, then build leaf by leaf."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from pagedjax.weights.params import ParamRule

from .source import TensorRef

NUMPY_DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
NAMED_AT_MOST = 12


@dataclass(frozen=True)
class Binding:
    """One leaf of the params tree and its source tensors, in the order of its rule's `sources`."""

    rule: ParamRule
    tensors: tuple[TensorRef, ...]


def bind(
    rules: Sequence[ParamRule], tensors: Mapping[str, TensorRef], skipped: re.Pattern[str]
) -> tuple[Binding, ...]:
    """Find every rule's tensors, and check that every tensor of the source is used or skipped.

    Raises a single ValueError that lists all tensors that are missing, unexpected (neither used by
    a rule nor matched by `skipped`), of the wrong shape, or of an unsupported data type.
    """
    wanted = {
        name: shape
        for rule in rules
        for name, shape in zip(rule.sources, rule.source_shapes, strict=True)
    }
    missing = [name for name in wanted if name not in tensors]
    unexpected = [name for name in tensors if name not in wanted and not skipped.search(name)]
    wrong = [
        f"{name} is {tensors[name].shape} instead of {shape}"
        for name, shape in wanted.items()
        if name in tensors and tensors[name].shape != shape
    ]
    unread = [
        f"{name} is {tensors[name].dtype}"
        for name in wanted
        if name in tensors and tensors[name].dtype not in NUMPY_DTYPES
    ]
    found = (
        ("missing", missing),
        ("unexpected", unexpected),
        ("wrong shape", wrong),
        (f"data type other than {', '.join(NUMPY_DTYPES)}", unread),
    )
    problems = [f"{word}: {_listed(names)}" for word, names in found if names]
    if problems:
        raise ValueError("the tensors do not fit the model's config; " + "; ".join(problems))
    return tuple(Binding(rule, tuple(tensors[name] for name in rule.sources)) for rule in rules)


def read_bound(bindings: Sequence[Binding], dtype: str) -> Iterator[tuple[ParamRule, np.ndarray]]:
    """Yield each rule with its leaf, a contiguous array of the rule's shape in `dtype`."""
    for binding in bindings:
        rule = binding.rule
        parts = [
            cast(name, tensor.read(), dtype)
            for name, tensor in zip(rule.sources, binding.tensors, strict=True)
        ]
        leaf = np.ascontiguousarray(rule.assemble(parts))
        del parts  # free the parts while the consumer holds the leaf
        yield rule, leaf
        del leaf


def cast(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    """Return `array` in `dtype`, rounded to nearest even.

    Raises ValueError if a finite value would become infinite.
    """
    if array.dtype == NUMPY_DTYPES[dtype]:
        return array
    with np.errstate(over="ignore"):
        result = array.astype(NUMPY_DTYPES[dtype])
    if not np.isfinite(result).all():
        lost = np.isfinite(array) & ~np.isfinite(result)
        if lost.any():
            raise ValueError(
                f"{name} has {lost.sum()} values too large for {dtype}, the first is "
                f"{float(array[lost][0])}; use bfloat16 or float32"
            )
    return result


def num_bytes(rules: Sequence[ParamRule], dtype: str) -> int:
    """Total bytes of all leaves in `dtype`."""
    return sum(int(np.prod(rule.shape)) for rule in rules) * NUMPY_DTYPES[dtype].itemsize


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMED_AT_MOST
    return ", ".join(names[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
