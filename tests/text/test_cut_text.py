"""CutText: the text of tokens up to a stop string, however many tokens arrive at a time."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from pagedjax import SamplingParams
from pagedjax.text.cut_text import CutText
from pagedjax.text.detokenizer import Detokenizer
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.stop_reference import STOPS, end_of


def streamed(ids: Sequence[int], params: SamplingParams, sizes: Sequence[int] = ()) -> CutText:
    """Feed tokens in calls of these sizes, and the rest in a final call.

    Checks after each call that the deltas add up to `text`.
    """
    text, rest, shown = CutText(Detokenizer(ByteTokenizer(), [*b"Hi"]), params), list(ids), ""
    for size in sizes:
        shown += text.append(rest[:size])
        rest = rest[size:]
        assert text.text == shown
    shown += text.append(rest, final=True)
    assert text.text == shown
    return text


SIGNS = ["a", "b", "é", "\U0001f336", "\n"]
BYTES = st.lists(
    st.one_of(st.sampled_from([each.encode() for each in SIGNS]), st.binary(max_size=3)),
    max_size=25,
).map(b"".join)


def apart(strings: Sequence[str]) -> bool:
    """Whether no string contains another, so that the match that begins first also ends first."""
    return all(a is b or a not in b for a in strings for b in strings)


APART = st.lists(
    st.lists(st.sampled_from([*SIGNS, "\ufffd"]), min_size=1, max_size=3).map("".join),
    min_size=1,
    max_size=3,
    unique=True,
).filter(apart)
SIZES = st.lists(st.integers(0, 6), max_size=10)


@settings(deadline=None)
@given(BYTES, APART, st.booleans(), SIZES)
def test_streamed_text_is_the_cut_of_the_one_shot_decode(
    data: bytes, stops: list[str], include: bool, sizes: list[int]
) -> None:
    """If no stop string contains another, the earliest match in the whole text ends it."""
    params = SamplingParams(stop=stops, include_stop_str_in_output=include)
    text, whole = streamed(list(data), params, sizes), data.decode(errors="replace")
    matches = [(whole.find(each), each) for each in stops if each in whole]
    position, match = min(matches, default=(len(whole), None))
    end = position + len(match) if include and match else position
    assert (text.text, text.stop_string) == (whole[:end], match)


@settings(deadline=None)
@given(BYTES, STOPS, st.booleans(), SIZES, st.integers(0, 16))
def test_the_text_does_not_depend_on_how_many_tokens_arrive_at_a_time(
    data: bytes, stops: list[str], include: bool, sizes: list[int], min_tokens: int
) -> None:
    params = SamplingParams(stop=stops, include_stop_str_in_output=include, min_tokens=min_tokens)
    some, one = streamed(list(data), params, sizes), streamed(list(data), params, [1] * len(data))
    assert (some.text, some.stop_string) == (one.text, one.stop_string)


@settings(deadline=None)
@given(st.text("ab\n", max_size=20), STOPS, st.booleans(), st.integers(0, 16))
def test_no_match_ends_within_the_text_of_min_tokens(
    whole: str, stops: list[str], include: bool, min_tokens: int
) -> None:
    params = SamplingParams(stop=stops, include_stop_str_in_output=include, min_tokens=min_tokens)
    text = streamed(list(whole.encode()), params)
    assert (text.text, text.stop_string) == end_of(whole, stops, include, min_tokens)


def test_a_copy_continues_independently() -> None:
    text = CutText(Detokenizer(ByteTokenizer(), []), SamplingParams(stop="bc"))
    text.append([*b"ab"])
    twin = text.copy()
    assert (text.append([*b"c"]), twin.append([*b"d"])) == ("", "bd")
    assert (text.text, text.stop_string) == ("a", "bc")
    assert (twin.text, twin.stop_string) == ("abd", None)
