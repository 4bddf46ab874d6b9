"""A request's changes to logits by token id: biases, and ids forbidden at the next position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class TokenEdits:
    """The edits of one request. `forbidden` depends on the output; the fields do not.

    bias: added to the logits of these ids. allowed: all other ids are forbidden; None: all are
    allowed. bad_words: token sequences that must not appear in the output. end_ids: forbidden
    until the output has `min_tokens` tokens.
    """

    bias: Mapping[int, float] = field(default_factory=dict)
    allowed: frozenset[int] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    end_ids: frozenset[int] = frozenset()
    min_tokens: int = 0

    @cached_property
    def exist(self) -> bool:
        """Whether the request has any edit."""
        held = bool(self.end_ids) and self.min_tokens > 0
        return bool(self.bias or self.bad_words or held) or self.allowed is not None

    @cached_property
    def need_every_token(self) -> bool:
        """Whether the host must know the last token before the next can be drawn.

        The last token of a bad word is forbidden only after the tokens before it.
        """
        return any(len(word) > 1 for word in self.bad_words)

    @cached_property
    def num_watched(self) -> int:
        """Number of last output tokens on which `forbidden` depends."""
        return max((len(word) - 1 for word in self.bad_words), default=0)

    def forbidden(self, last_ids: Sequence[int], num_output: int) -> frozenset[int]:
        """Ids forbidden as the next token, apart from those outside `allowed`.

        last_ids: the last `num_watched` output ids, or all if there are fewer. num_output: output
        tokens, including those not yet read.
        """
        found = set(self.end_ids if num_output < self.min_tokens else ())
        for *start, last in self.bad_words:
            if not start or list(last_ids[-len(start) :]) == start:
                found.add(last)
        return frozenset(found)
