"""Lets the kernels be measured on a machine that has jax and not pagedjax's other dependencies.

What benchmarks take from pagedjax for their header and their errors needs the standard library
alone, but lies in a package whose own import needs flax, transformers and more.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

ROOT = Path(__file__).parents[2]


def missing() -> str | None:
    """What keeps pagedjax from being imported; None if nothing does."""
    try:
        importlib.import_module("pagedjax")
    except ImportError as error:
        return str(error)
    return None


def allow() -> None:
    """Make pagedjax's modules importable one by one where the package is not."""
    if missing() is None:
        return
    for name in [each for each in sys.modules if each.split(".")[0] == "pagedjax"]:
        del sys.modules[name]
    package = types.ModuleType("pagedjax", "Only what needs no other package.")
    package.__path__ = [str(ROOT / "pagedjax")]
    sys.modules["pagedjax"] = package
