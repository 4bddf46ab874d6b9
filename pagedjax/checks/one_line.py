"""How commands end when something is wrong: one line on stderr and a non-zero status."""

from __future__ import annotations

import sys
from collections.abc import Callable

# These say what is wrong by themselves.
CLEAR = (OSError, ValueError, TypeError, NotImplementedError, MemoryError)


def exit_status(command: Callable[[], None], debug: bool) -> int:
    """Run `command`; 0 if it returns, else 1 after one line, or its traceback with `debug`."""
    try:
        command()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if debug:
            raise
        text = str(error) if isinstance(error, CLEAR) else f"{type(error).__name__}: {error}"
        print(f"error: {' '.join(text.split()) or type(error).__name__}", file=sys.stderr)
        return 1
    return 0
