"""Tables and numbers in Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

WIDTH = 100


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return [_line(columns), "|" + "---|" * len(columns), *map(_line, rows)]


def paragraph(text: str) -> list[str]:
    """Return `text` as lines of at most WIDTH characters."""
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def spread(ends: Mapping[str, float], digits: int = 1) -> str:
    """Format a median with the minimum and maximum in parentheses."""
    median, low, high = (f"{ends[name]:,.{digits}f}" for name in ("median", "min", "max"))
    return f"{median} ({low} - {high})"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
