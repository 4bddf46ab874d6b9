"""The plan of one step: rows of tokens, the requests that sample, and block copies before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pagedjax.schedule.request import Request


class Row(NamedTuple):
    """The tokens of one request in a step: positions [start, start + num_tokens).

    samples: the requests that draw their next token from the logits of the last position: none,
        the row's own request, or that request and the siblings that share its prompt.
    """

    request: Request
    start: int
    num_tokens: int
    samples: tuple[Request, ...] = ()

    @property
    def end(self) -> int:
        """One past the last position."""
        return self.start + self.num_tokens


@dataclass(frozen=True)
class Plan:
    """A step. `decode` rows have one token, read from the slot; `chunks` have known tokens.

    copies: pairs of blocks (from, to) to copy before the step, in all layers.
    """

    decode: list[Row]
    chunks: list[Row]
    copies: Sequence[tuple[int, int]] = ()

    @cached_property
    def rows(self) -> list[Row]:
        """All rows, in the order of their tokens in the step."""
        return self.decode + self.chunks

    @cached_property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return len(self.decode) + sum(row.num_tokens for row in self.chunks)

    @cached_property
    def samplers(self) -> list[Request]:
        """The requests that draw a token, in the order in which `commit` takes the tokens."""
        return [request for row in self.rows for request in row.samples]
