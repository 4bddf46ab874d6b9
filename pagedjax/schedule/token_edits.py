"""What a request adds to logits by token id, and which ids it forbids at its present place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class TokenEdits:
    """The request's part that never changes; `forbidden` is the part that does.

    bias: added to the logits of these ids. allowed: all other ids are forbidden; None: no such
    limit. bad_words: token sequences that must not appear in the output. end_ids: forbidden until
    the output has `min_tokens` tokens.
    """

    bias: Mapping[int, float] = field(default_factory=dict)
    allowed: frozenset[int] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    end_ids: frozenset[int] = frozenset()
    min_tokens: int = 0

    @cached_property
    def exist(self) -> bool:
        """Whether the request edits anything at all."""
        held = bool(self.end_ids) and self.min_tokens > 0
        return bool(self.bias or self.bad_words or held) or self.allowed is not None

    @cached_property
    def need_every_token(self) -> bool:
        """Whether the host must know the last token before the next can be drawn.

        A bad word of several tokens is forbidden only after its first ones.
        """
        return any(len(word) > 1 for word in self.bad_words)

    @cached_property
    def num_watched(self) -> int:
        """How many of the output's last tokens decide what is forbidden."""
        return max((len(word) - 1 for word in self.bad_words), default=0)

    def forbidden(self, last_ids: Sequence[int], num_output: int) -> frozenset[int]:
        """Ids that may not be the next token, those outside `allowed` left aside.

        last_ids: the output's last `num_watched` ones, or all that there are. num_output: tokens
        of the output, those not yet read included.
        """
        found = set(self.end_ids if num_output < self.min_tokens else ())
        for *start, last in self.bad_words:
            if not start or list(last_ids[-len(start) :]) == start:
                found.add(last)
        return frozenset(found)
