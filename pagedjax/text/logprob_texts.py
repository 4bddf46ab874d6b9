"""Reported tokens with their texts: what `logprobs` and `prompt_logprobs` show."""

from __future__ import annotations

from typing import Any

from pagedjax.outputs import Logprob
from pagedjax.schedule.request import Candidates
from pagedjax.text.detokenizer import MOST_BYTES, REPLACEMENT


class TokenTexts:
    """The text of single tokens in the middle of a text, each decoded once.

    tokenizer: None where no text is wanted; every text is then None.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def __bool__(self) -> bool:
        return self._tokenizer is not None

    def alone(self, token: int) -> str:
        """The text that the token adds to a text before it."""
        if token not in self._texts:
            # After itself, so that a tokenizer that drops the space before the first word keeps it.
            once, twice = self.joined([token]), self.joined([token, token])
            in_middle = REPLACEMENT not in once and twice.startswith(once)
            self._texts[token] = twice[len(once) :] if in_middle else once
        return self._texts[token]

    def joined(self, tokens: list[int]) -> str:
        """The text of several tokens."""
        return self._tokenizer.decode(tokens, skip_special_tokens=False)


class LogprobTexts:
    """Turns the candidates of successive positions into dicts of Logprob.

    A token that ends within a character has the empty text, and the token that completes the
    character has all of it, so the texts of the sampled tokens join to the output's text.
    """

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._unfinished: list[int] = []  # the last tokens, whose character is not complete

    def append(self, each: Candidates, final: bool = False) -> dict[int, Logprob]:
        """The sampled token and the best tokens beside it; `final`: no token can follow."""
        found = {each.token: Logprob(each.logprob, each.rank, self._text(each.token, final))}
        for rank, (token, logprob) in enumerate(each.best, start=1):
            if token not in found:
                found[token] = Logprob(logprob, rank, self._text(token, final))
        if self._texts:
            self._advance(each.token)
        return found

    def _advance(self, token: int) -> None:
        if self._is_unfinished(self._whole(token)):
            self._unfinished = [*self._unfinished, token]
        else:
            self._unfinished = []

    def _text(self, token: int, final: bool) -> str | None:
        if not self._texts:
            return None
        whole = self._whole(token)
        return "" if self._is_unfinished(whole) and not final else whole

    def _whole(self, token: int) -> str:
        """The token's text, with that of the unfinished tokens before it."""
        if not self._unfinished:
            return self._texts.alone(token)
        return self._texts.joined([*self._unfinished, token])

    def _is_unfinished(self, whole: str) -> bool:
        # A character has at most four bytes and a token at least one.
        return whole.endswith(REPLACEMENT) and len(self._unfinished) < MOST_BYTES - 1
