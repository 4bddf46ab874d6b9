"""Incremental detokenization."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

# Tokens of the prompt that are decoded before the output. Some tokenizers treat the first word of
# a text specially, which must not happen in the middle of a text.
CONTEXT_TOKENS = 6
REPLACEMENT = "\ufffd"
MOST_BYTES = 4  # of one UTF-8 character


class Detokenizer:
    """Decodes a growing list of tokens into pieces that join to the text of a one-shot decode.

    A piece is released once its characters are complete: while the text ends in an unfinished
    UTF-8 sequence, it is held back until later tokens complete it or the output ends. Each piece
    is decoded with the previous one as context, so the work per token does not grow.
    """

    def __init__(
        self, tokenizer: Any, prompt_ids: Sequence[int], skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids = self._whole_end(prompt_ids)
        self._context_end = len(self._ids)
        self.text = ""

    def copy(self) -> Detokenizer:
        """An independent detokenizer in the same state."""
        twin = copy.copy(self)
        twin._ids = list(self._ids)
        return twin

    def _whole_end(self, prompt_ids: Sequence[int]) -> list[int]:
        """The last tokens of the prompt, starting at a character boundary.

        If the prompt ends within a character, there is no context.
        """
        for count in range(CONTEXT_TOKENS, CONTEXT_TOKENS + MOST_BYTES):
            context = list(prompt_ids[-count:])
            if not self._decode(context).endswith(REPLACEMENT):
                return context
        return []

    def append(self, token_ids: Sequence[int], final: bool = False) -> str:
        """Return the text that these tokens complete; `final` also releases incomplete text."""
        self._ids += token_ids
        end = len(self._ids)
        whole = self._decode(self._ids)
        if whole.endswith(REPLACEMENT) and not final:
            end = self._clean_cut(whole)
            whole = self._decode(self._ids[:end])
        piece = self._beyond_context(whole, end)
        if piece:  # the new tokens become the context of the next ones
            self._ids = self._ids[self._context_end :]
            end -= self._context_end
            self._context_end = end
        elif end == len(self._ids) and self._are_textless(self._ids[self._context_end :]):
            del self._ids[self._context_end :]  # without text they are no context
        self.text += piece
        return piece

    def _beyond_context(self, whole: str, end: int) -> str:
        """The part of `whole`, the text of the first `end` tokens, after the context's text.

        For a single broken byte, a byte fallback decoder replaces every byte of a run, including
        complete characters of the context. Those were released before, so only the rest counts.
        """
        known = self._decode(self._ids[: self._context_end])
        if whole.startswith(known):
            return whole[len(known) :]
        return self._decode(self._ids[self._context_end : end])

    def _are_textless(self, ids: list[int]) -> bool:
        """Whether all are special tokens. Decoded twice: a tokenizer may drop the first space."""
        return not self._decode(ids * 2)

    def _clean_cut(self, whole: str) -> int:
        """Where held tokens can be split although the text ends in a broken character.

        A character has at most four bytes and a token at least one. So more than four held tokens
        contain a character boundary, where both sides decode separately to the same text.
        """
        held = len(self._ids) - self._context_end
        if held > MOST_BYTES:
            for cut in range(len(self._ids) - 1, len(self._ids) - 1 - MOST_BYTES, -1):
                left, right = self._decode(self._ids[:cut]), self._decode(self._ids[cut:])
                if right and left + right == whole:
                    return cut
        return self._context_end

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip)
