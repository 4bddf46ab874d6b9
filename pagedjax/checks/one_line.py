"""How commands end when something is wrong: one line on stderr and a non-zero status."""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

# These say what is wrong by themselves.
CLEAR = (OSError, ValueError, TypeError, NotImplementedError, MemoryError)


def exit_status(command: Callable[[], None], debug: bool) -> int:
    """Run `command`; 0 if it returns, else 1 after one line, or its traceback with `debug`.

    What stdout cannot encode is printed as an escape and ends nothing.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        command()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if debug:
            raise
        print(f"error: {describe(error)}", file=sys.stderr)
        return 1
    return 0


def describe(error: BaseException) -> str:
    """One line that says what is wrong; for an error without a text its type, place and cause."""
    name = type(error).__name__
    text = " ".join(str(error).split())
    if text:
        return text if isinstance(error, CLEAR) else f"{name}: {text}"
    jax = sys.modules.get("jax")
    if isinstance(error, AssertionError) and jax is not None and _finds_nothing(jax):
        return no_device(jax.config.jax_platforms)
    place = _place(error)
    said = f"{name} in {place}" if place else name
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return said if cause is None else f"{said}, from {describe(cause)}"


def no_device(platforms: str) -> str:
    """What to say when jax has no device of `platforms`, for which it has no words itself."""
    return (
        f"JAX_PLATFORMS={platforms}: jax finds no such device; unset it, or install jax[cuda13] "
        "on a machine with a GPU"
    )


def _finds_nothing(jax: ModuleType) -> bool:
    try:
        jax.devices()
    except AssertionError:  # the frames of the first one do not tell: jax cuts its own off
        return bool(jax.config.jax_platforms)
    except Exception:
        return False
    return False


def _place(error: BaseException) -> str:
    """Where `error` was raised, as `file.py:line`; empty if it never was."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
