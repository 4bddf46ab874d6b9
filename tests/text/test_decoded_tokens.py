"""`decoded_token`: the texts of an output's tokens join to the output's text."""

from __future__ import annotations

from pagedjax.outputs import Logprob
from pagedjax.schedule.request import Candidates
from pagedjax.text.logprob_texts import LogprobTexts, TokenTexts
from tests.support.byte_tokenizer import ByteTokenizer


class Words:
    """Ids are words, and a text has a space between two, as SentencePiece's have."""

    words = ("the", "cat", "sat")

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return " ".join(self.words[each] for each in ids)


class Bytes:
    """Ids are bytes of UTF-8."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


def pieces(tokenizer: object, ids: list[int], finished: bool = True) -> list[str]:
    texts = LogprobTexts(TokenTexts(tokenizer))
    found: list[dict[int, Logprob]] = []
    for index, token in enumerate(ids):
        is_last = finished and index + 1 == len(ids)
        found.append(texts.append(Candidates(token, -1.0, 1, ()), final=is_last))
    return [each[token].decoded_token for each, token in zip(found, ids, strict=True)]


def test_the_last_part_of_a_character_has_all_of_it() -> None:
    ids = list("aé🙂ß".encode())
    assert pieces(Bytes(), ids) == ["a", "", "é", "", "", "", "🙂", "", "ß"]


def test_pieces_join_to_the_text_also_where_bytes_are_broken() -> None:
    for ids in ([0xF0, 0x9F], [0xF0, 0x9F, 0x61], [0xC3, 0x28], [0x80] * 9, [0x61, 0xE2, 0x82]):
        assert "".join(pieces(Bytes(), ids)) == Bytes().decode(ids)


def test_a_candidate_is_read_after_the_unfinished_tokens() -> None:
    first, *rest = "🙂".encode()
    texts = LogprobTexts(TokenTexts(Bytes()))
    for token in (first, *rest[:-1]):
        texts.append(Candidates(token, -1.0, 1, ()))
    last = Candidates(rest[-1], -1.0, 1, ((rest[-1], -1.0), (rest[-1] + 1, -2.0)))
    found = texts.append(last)
    assert [each.decoded_token for each in found.values()] == ["🙂", "🙃"]


def test_a_word_has_the_space_before_it() -> None:
    assert pieces(Words(), [0, 1, 1, 2]) == [" the", " cat", " cat", " sat"]


def test_without_a_tokenizer_there_is_no_text() -> None:
    texts = LogprobTexts(TokenTexts(None))
    assert texts.append(Candidates(3, -1.0, 1, ()))[3].decoded_token is None


def test_a_text_is_decoded_once() -> None:
    tokenizer = ByteTokenizer()
    texts = LogprobTexts(TokenTexts(tokenizer))
    for _ in range(5):
        texts.append(Candidates(65, -1.0, 1, ((66, -2.0),)))
    assert tokenizer.num_decoded <= 2 * 3
