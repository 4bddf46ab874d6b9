"""Text to token ids: prompts, words within a text, and rendered chat templates."""

from __future__ import annotations

from typing import Any


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a raw prompt, with one beginning-of-sequence token if the tokenizer adds one.

    If the text itself begins with that token, no second one is added.
    """
    ids = _ids(tokenizer.encode(_unicode(text)))
    bos = getattr(tokenizer, "bos_token_id", None)
    if bos is not None and ids[:2] == [bos, bos]:
        return ids[1:]
    return ids


def encode_word(tokenizer: Any, word: str) -> list[tuple[int, ...]]:
    """Token ids of a word within a text: as given, and after a space."""
    spelled = (word, " " + word.lstrip())
    ids = [_ids(tokenizer.encode(_unicode(each), add_special_tokens=False)) for each in spelled]
    return [tuple(each) for each in ids if each]


def encode_rendered(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text that has its special tokens already, as chat templates write it."""
    return _ids(tokenizer.encode(_unicode(text), add_special_tokens=False))


def _unicode(text: str) -> str:
    """Return the text; ValueError if it has a lone surrogate, which cannot be encoded."""
    text.encode()
    return text


def _ids(encoded: Any) -> list[int]:
    """Ids of what `encode` returned: a list, or an Encoding of the tokenizers package."""
    return list(getattr(encoded, "ids", encoded))
