"""Stop strings: where a growing text ends, and how much of it can be shown before that."""

from __future__ import annotations

import copy
from collections.abc import Sequence


class StopStrings:
    """Takes a text piece by piece and releases text that cannot be part of a stop string.

    The piece that completes a stop string ends the text. If it completes several, the one that
    begins earliest counts; ties go to the one listed first.

    strings: none of them empty. include: whether the text ends after the stop string or before it.
    match: the stop string that ended the text; None until then.
    """

    def __init__(self, strings: Sequence[str], include: bool = False) -> None:
        self._strings = tuple(strings)
        self._include = include
        self._held = ""  # the longest suffix of the text that may begin a stop string
        self.match: str | None = None

    def copy(self) -> StopStrings:
        """Independent stop strings in the same state."""
        return copy.copy(self)

    def append(self, piece: str, watch: bool = True) -> str:
        """Return the text that is certain after this piece.

        watch: False ignores stop strings that end within this piece. One that begins in it may
            still end in a later piece.
        """
        text, old = self._held + piece, len(self._held)
        if watch and (found := self._first(text, old)):
            position, self.match = found
            self._held = ""
            return text[: position + len(self.match)] if self._include else text[:position]
        certain = self._certain(text)
        self._held = text[certain:]
        return text[:certain]

    def release(self) -> str:
        """Return the text held back, at the end of a text without a stop string."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str, old: int) -> tuple[int, str] | None:
        """Position and string of the first match that ends beyond `old` characters.

        A match cannot begin in released text, because its beginning would have been held back.
        """
        matches = [
            (position, order)
            for order, string in enumerate(self._strings)
            if (position := text.find(string, max(0, old + 1 - len(string)))) >= 0
        ]
        if not matches:
            return None
        position, order = min(matches)
        return position, self._strings[order]

    def _certain(self, text: str) -> int:
        """Length of the text without its longest suffix that begins a stop string."""
        return min(_overlap(text, string) for string in self._strings)


def _overlap(text: str, string: str) -> int:
    """First position where the rest of the text is a proper prefix of `string`.

    Searching for the first character skips nearly every position.
    """
    position = text.find(string[0], max(0, len(text) + 1 - len(string)))
    while position >= 0 and not string.startswith(text[position:]):
        position = text.find(string[0], position + 1)
    return len(text) if position < 0 else position
