"""Tokenizers for tests of detokenizing: one id per byte, per word, or per given piece."""

from collections.abc import Sequence

BOS, EOS = 256, 257


class ByteTokenizer:
    """Ids below 256 are bytes, ids above are special. `num_decoded` counts decoded ids."""

    bos_token_id = BOS

    def __init__(self) -> None:
        self.num_decoded = 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        self.num_decoded += len(ids)
        pieces = [bytes([i]) if i < 256 else f"<{i}>".encode() for i in ids]
        if skip_special_tokens:
            pieces = [piece for piece, i in zip(pieces, ids, strict=True) if i < 256]
        return b"".join(pieces).decode("utf-8", errors="replace")


class WordTokenizer:
    """Ids are words with a leading space; `decode` drops the space of the first word."""

    def __init__(self, words: str) -> None:
        self.words = words.split()

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(" " + self.words[i] for i in ids).removeprefix(" ")


class PieceTokenizer:
    """Id i is the i-th piece of text or bytes; ids from `special` on are special."""

    def __init__(self, pieces: Sequence[str | bytes], special: int | None = None) -> None:
        self.pieces = [each.encode() if isinstance(each, str) else each for each in pieces]
        self.special = len(pieces) if special is None else special

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        kept = [i for i in ids if i < self.special or not skip_special_tokens]
        return b"".join(self.pieces[i] for i in kept).decode(errors="replace")
