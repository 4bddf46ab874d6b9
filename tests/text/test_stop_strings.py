"""StopStrings: which match ends the text, and which text is held back until then."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedjax import SamplingParams
from pagedjax.text.stop_strings import StopStrings
from tests.support.engine_runs import PROMPT
from tests.support.stop_reference import STOPS, end_of
from tests.support.tiny_llama import make_engine


def fed(pieces: Sequence[str], stop: str | Sequence[str], include: bool = False) -> list[str]:
    """The text released after each piece, then the match if any; the last piece releases all."""
    stops = StopStrings([stop] if isinstance(stop, str) else stop, include)
    out = []
    for number, piece in enumerate(pieces, 1):
        out.append(stops.append(piece))
        if stops.match is not None:
            return [*out, stops.match]
        if number == len(pieces):
            out[-1] += stops.release()
    return out


@pytest.mark.parametrize(
    ("pieces", "stop", "expected"),
    [
        (["ab", "c"], "bc", ["a", "", "bc"]),
        (["aab"], "ab", ["a", "ab"]),
        (["a", "a", "a", "b"], "aab", ["", "", "a", "", "aab"]),
        (["ab", "ab", "ac"], "abac", ["", "ab", "", "abac"]),
        (["ab", "x"], "abc", ["", "abx"]),
        (["ab", ""], "abc", ["", "ab"]),
        (["abc", "d"], "abc", ["", "abc"]),
        (["x\n", "\n"], ["\n\n", "###"], ["x", "", "\n\n"]),
        (["one # two ##", " #"], ["###"], ["one # two ", "## #"]),
    ],
)
def test_text_that_is_released_after_each_piece(
    pieces: list[str], stop: str | list[str], expected: list[str]
) -> None:
    assert fed(pieces, stop) == expected


@pytest.mark.parametrize(
    ("pieces", "stop", "expected"),
    [
        (["foo bar baz"], ["baz", "bar"], ["foo ", "bar"]),
        (["xabcd"], ["c", "abc"], ["x", "abc"]),  # in one piece, the match that begins first
        (["xabcd"], ["ab", "abc"], ["x", "ab"]),  # then the stop string that is listed first
        (["xabcd"], ["abc", "ab"], ["x", "abc"]),
        (["xab", "cd"], ["abc", "ab"], ["x", "ab"]),  # a match never waits for the next piece
        (["xab", "cd"], ["abcd", "b"], ["xa", "b"]),
    ],
)
def test_the_earliest_of_several_matches_ends_the_text(
    pieces: list[str], stop: list[str], expected: list[str]
) -> None:
    assert fed(pieces, stop) == expected


def test_the_stop_string_is_part_of_the_text_when_asked() -> None:
    assert fed(["a", "bc", "d"], "bc", include=True) == ["a", "bc", "bc"]
    assert fed(["a", "b", "cd"], "bc", include=True) == ["a", "", "bc", "bc"]


def test_unwatched_text_does_not_match_later() -> None:
    stops = StopStrings(["xbz", "b"])
    assert stops.append("axb", watch=False) == "a"  # "xb" may still become "xbz"
    assert (stops.append("y"), stops.match) == ("xby", None)


@pytest.mark.parametrize(("piece", "out"), [("c", "a"), ("bc", "ab")])
def test_a_match_may_begin_unwatched(piece: str, out: str) -> None:
    stops = StopStrings(["bc"])
    assert stops.append("ab", watch=False) + stops.append(piece) == out
    assert stops.match == "bc"


def test_the_beginnings_of_a_long_stop_string_are_held() -> None:
    stops = StopStrings(["a" * 500 + "b", "b" * 500])
    out = [stops.append("a") for _ in range(600)]
    assert out == [""] * 500 + ["a"] * 100
    assert stops.append("b") == "" and stops.match == "a" * 500 + "b"


@settings(deadline=None)
@given(st.lists(st.text("ab\n", max_size=5), max_size=12), STOPS, st.booleans(), st.integers(0, 6))
def test_random_pieces_end_where_a_search_of_the_whole_text_says(
    pieces: list[str], strings: list[str], include: bool, num_unwatched: int
) -> None:
    stops, shown = StopStrings(strings, include), ""
    expected, match = end_of(pieces, strings, include, num_unwatched)
    for number, piece in enumerate(pieces):
        shown += stops.append(piece, watch=number >= num_unwatched)
        assert expected.startswith(shown), "shown text was taken back"
        if stops.match is not None:
            break
        whole = "".join(pieces[: number + 1])
        held = max((n for s in strings for n in range(len(s)) if whole.endswith(s[:n])), default=0)
        assert len(shown) == len(whole) - held, "held text must be a prefix of a stop"
    assert (shown + stops.release(), stops.match) == (expected, match)


def test_stop_strings_without_text_are_refused() -> None:
    with pytest.raises(ValueError, match="stop='x'.*detokenize=True"):
        SamplingParams(stop="x", detokenize=False)
    assert SamplingParams(stop=[], detokenize=False).stop_strings == ()


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    engine = make_engine()
    with pytest.raises(ValueError, match=r"stop=\['x'\].*no tokenizer"):
        engine.add_request("a", PROMPT, SamplingParams(stop=["x"]))
    engine.add_request("a", PROMPT, SamplingParams(stop=[]))
