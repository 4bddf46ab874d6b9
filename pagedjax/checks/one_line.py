"""Error reporting of commands: one line on stderr and a non-zero exit status."""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

# Their messages are clear without the name of the type.
CLEAR = (OSError, ValueError, TypeError, NotImplementedError, MemoryError)


def exit_status(command: Callable[[], None], debug: bool) -> int:
    """Run `command`; return 0, or 1 (130 if interrupted) after printing a one-line error.

    debug: let exceptions propagate, to show their traceback.

    Characters that stdout cannot encode are printed as escapes.
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
    """Describe `error` in one line; an error without a message by its type, place and cause."""
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
    """The message for jax having no device of `platforms`, since jax's own error has none."""
    return (
        f"JAX_PLATFORMS={platforms}: jax finds no such device; unset it, or install jax[cuda13] "
        "on a machine with a GPU"
    )


def _finds_nothing(jax: ModuleType) -> bool:
    try:
        jax.devices()
    except AssertionError:  # the first error's traceback cannot tell, as jax filters its frames
        return bool(jax.config.jax_platforms)
    except Exception:
        return False
    return False


def _place(error: BaseException) -> str:
    """Where `error` was raised, as `file.py:line`; empty if it was never raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
