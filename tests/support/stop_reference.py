"""The end of a text at its stop strings, found by a search of the whole text after each piece."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st


def end_of(
    pieces: Sequence[str], stops: Sequence[str], include: bool, num_unwatched: int = 0
) -> tuple[str, str | None]:
    """The final text and the match, which must end after the text of the unwatched pieces."""
    free = len("".join(pieces[:num_unwatched]))
    for count in range(num_unwatched, len(pieces) + 1):
        text = "".join(pieces[:count])
        matches = [
            (position, order)
            for order, stop in enumerate(stops)
            for position in range(len(text))
            if text.startswith(stop, position) and position + len(stop) > free
        ]
        if matches:
            position, order = min(matches)
            return text[: position + include * len(stops[order])], stops[order]
    return "".join(pieces), None


STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=3)
