"""Text to token ids: prompts, words within a text, and what a chat template wrote."""

from __future__ import annotations

from typing import Any


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a raw prompt, with one beginning-of-sequence token if the tokenizer adds one.

    A text that spells that token out itself does not get a second one.
    """
    ids = _ids(tokenizer.encode(_unicode(text)))
    bos = getattr(tokenizer, "bos_token_id", None)
    if bos is not None and ids[:2] == [bos, bos]:
        return ids[1:]
    return ids


def encode_word(tokenizer: Any, word: str) -> list[tuple[int, ...]]:
    """Token ids of a word within a text: as it stands, and after a space."""
    spelled = (word, " " + word.lstrip())
    ids = [_ids(tokenizer.encode(_unicode(each), add_special_tokens=False)) for each in spelled]
    return [tuple(each) for each in ids if each]


def encode_rendered(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text that has all its special tokens, as a chat template writes it."""
    return _ids(tokenizer.encode(_unicode(text), add_special_tokens=False))


def _unicode(text: str) -> str:
    """The text, or ValueError if a lone surrogate makes it impossible to encode."""
    text.encode()
    return text


def _ids(encoded: Any) -> list[int]:
    """Ids of what `encode` returned: a list, or an Encoding of the tokenizers package."""
    return list(getattr(encoded, "ids", encoded))
