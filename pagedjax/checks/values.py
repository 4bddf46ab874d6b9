"""Convert user values to plain Python values, and validate them with errors that name them."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any


def plain_number(value: Any) -> Any:
    """Convert a number, such as a numpy scalar, to a Python number; return others unchanged."""
    if type(value) in (bool, int, float):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def plain_list(value: Any) -> Any:
    """Convert an array or set to a list, and the elements of a list or tuple to Python numbers;
    return anything else unchanged."""
    if hasattr(value, "tolist"):
        return value.tolist()
    kind = tuple if isinstance(value, tuple) else list
    known = isinstance(value, list | tuple | set | frozenset)
    return kind(plain_number(each) for each in value) if known else value


def is_int(value: Any) -> bool:
    """Whether `value` is an int but not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_seed(value: int) -> int:
    """Return `value` if it is an int in [0, 2**32), else raise ValueError.

    Larger seeds are rejected because a 32-bit key would map them to smaller ones.
    """
    if not is_int(value) or not 0 <= value < 2**32:
        raise ValueError(f"seed={value!r} must be an int with 0 <= seed < 2**32")
    return value


def positive_int(name: str, value: Any) -> int:
    """Return `value` if it is an int of at least 1, else raise ValueError."""
    if not is_int(value) or value < 1:
        raise ValueError(f"{name}={value!r} must be an int of at least 1")
    return value


def is_finite(value: Any) -> bool:
    """Whether `value` is a finite number that a float can hold, but not a bool."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the range of float
        return False


def finite(name: str, value: Any) -> float:
    """Return `value` as a float if it is a finite number, else raise ValueError."""
    if not is_finite(value):
        raise ValueError(f"{name}={value!r} must be a finite number")
    return float(value)


def positive(name: str, value: Any) -> float:
    """Return `value` as a float if it is finite and above 0, else raise ValueError."""
    if finite(name, value) <= 0:
        raise ValueError(f"{name}={value!r} must be positive")
    return float(value)


def one_of(name: str, value: str, supported: tuple[str, ...]) -> str:
    """Return `value` if it is in `supported`, else raise ValueError that lists `supported`."""
    if value not in supported:
        listed = ", ".join(repr(each) for each in supported)
        raise ValueError(f"{name}={value!r} is unknown; supported: {listed}")
    return value
