"""Lets `bench.attention` run on a machine that has jax but not pagedjax's other dependencies.

The modules of pagedjax that it uses, for its header and its errors, need the standard library only,
but importing the package `pagedjax` itself needs flax, transformers and more.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

ROOT = Path(__file__).parents[2]


def missing() -> str | None:
    """Return the error that importing pagedjax raises; None if it can be imported."""
    try:
        importlib.import_module("pagedjax")
    except ImportError as error:
        return str(error)
    return None


def allow() -> None:
    """Make single modules of pagedjax importable if the package is not."""
    if missing() is None:
        return
    for name in [each for each in sys.modules if each.split(".")[0] == "pagedjax"]:
        del sys.modules[name]
    package = types.ModuleType("pagedjax", "Modules that need no other package.")
    package.__path__ = [str(ROOT / "pagedjax")]
    sys.modules["pagedjax"] = package
