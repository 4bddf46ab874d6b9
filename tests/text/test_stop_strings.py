"""Stop strings: where the text ends, what is held back until then, and the request that stops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedjax import LLM, CompletionOutput, Engine, RequestOutput, SamplingParams
from pagedjax.outputs import FinishReason
from pagedjax.schedule.request import Request, Status
from pagedjax.text.cut_text import CutText
from pagedjax.text.detokenizer import Detokenizer
from pagedjax.text.stop_strings import StopStrings
from pagedjax.text.transcript import Transcript
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.tiny_llama import make_engine, tiny


class PieceTokenizer:
    """Id i is the i-th piece of text or bytes, as it stands; ids from `special` on are special."""

    def __init__(self, pieces: Sequence[str | bytes], special: int | None = None) -> None:
        self.pieces = [each.encode() if isinstance(each, str) else each for each in pieces]
        self.special = len(pieces) if special is None else special

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        kept = [i for i in ids if i < self.special or not skip_special_tokens]
        return b"".join(self.pieces[i] for i in kept).decode(errors="replace")


# -- the text of pieces ---------------------------------------------------------------------------


def fed(pieces: Sequence[str], stop: str | Sequence[str], include: bool = False) -> list[str]:
    """What comes out after each piece, until the text ends; all that is held with the last one."""
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
def test_what_comes_out_after_each_piece(
    pieces: list[str], stop: str | list[str], expected: list[str]
) -> None:
    assert fed(pieces, stop) == expected


@pytest.mark.parametrize(
    ("pieces", "stop", "expected"),
    [
        (["foo bar baz"], ["baz", "bar"], ["foo ", "bar"]),
        (["xabcd"], ["c", "abc"], ["x", "abc"]),  # the earlier beginning counts in one piece
        (["xabcd"], ["ab", "abc"], ["x", "ab"]),  # then the one listed first
        (["xabcd"], ["abc", "ab"], ["x", "abc"]),
        (["xab", "cd"], ["abc", "ab"], ["x", "ab"]),  # and no piece waits for the next one
        (["xab", "cd"], ["abcd", "b"], ["xa", "b"]),
    ],
)
def test_of_several_matches_the_earliest_counts(
    pieces: list[str], stop: list[str], expected: list[str]
) -> None:
    assert fed(pieces, stop) == expected


def test_the_stop_string_is_part_of_the_text_when_asked() -> None:
    assert fed(["a", "bc", "d"], "bc", include=True) == ["a", "bc", "bc"]
    assert fed(["a", "b", "cd"], "bc", include=True) == ["a", "", "bc", "bc"]


def test_what_passes_unwatched_does_not_match_later() -> None:
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


def end_of(
    pieces: Sequence[str], stops: Sequence[str], include: bool, num_unwatched: int = 0
) -> tuple[str, str | None]:
    """Text and match by looking at the whole text after every piece."""
    free = len("".join(pieces[:num_unwatched]))
    for count in range(num_unwatched, len(pieces) + 1):
        text = "".join(pieces[:count])
        matches = [
            (position, order)
            for order, stop in enumerate(stops)
            for position in range(len(text))
            if text.startswith(stop, position) and position + len(stop) > free
        ]
        if matches:
            position, order = min(matches)
            return text[: position + include * len(stops[order])], stops[order]
    return "".join(pieces), None


STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=3)


@settings(deadline=None)
@given(st.lists(st.text("ab\n", max_size=5), max_size=12), STOPS, st.booleans(), st.integers(0, 6))
def test_random_pieces_end_where_a_look_at_the_whole_text_says(
    pieces: list[str], strings: list[str], include: bool, num_unwatched: int
) -> None:
    stops, shown = StopStrings(strings, include), ""
    expected, match = end_of(pieces, strings, include, num_unwatched)
    for number, piece in enumerate(pieces):
        shown += stops.append(piece, watch=number >= num_unwatched)
        assert expected.startswith(shown), "what was shown is taken back"
        if stops.match is not None:
            break
        whole = "".join(pieces[: number + 1])
        held = max((n for s in strings for n in range(len(s)) if whole.endswith(s[:n])), default=0)
        assert len(shown) == len(whole) - held, "no more is held than may be a beginning"
    assert (shown + stops.release(), stops.match) == (expected, match)


# -- the text of tokens ---------------------------------------------------------------------------


def streamed(ids: Sequence[int], params: SamplingParams, sizes: Sequence[int] = ()) -> CutText:
    """The text of tokens that arrive in calls of these sizes; the rest arrives in the last one.

    Checks that `text` is what the deltas add up to.
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
    """Whether none contains another, so that what begins earliest also ends earliest."""
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
    """Where no stop string contains another, the earliest position of the whole text counts."""
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


def test_a_copy_goes_on_by_itself() -> None:
    text = CutText(Detokenizer(ByteTokenizer(), []), SamplingParams(stop="bc"))
    text.append([*b"ab"])
    twin = text.copy()
    assert (text.append([*b"c"]), twin.append([*b"d"])) == ("", "bd")
    assert (text.text, text.stop_string) == ("a", "bc")
    assert (twin.text, twin.stop_string) == ("abd", None)


# -- the transcript of a request ------------------------------------------------------------------

FOX = ["The quick br", "own", " fox", " j", b"\xf0\x9f\x8c", "<eos>"]


def told(
    ids: Sequence[int], finish_reason: str | None = None, **options: Any
) -> list[CompletionOutput]:
    """Snapshots of a request whose pieces of FOX arrive one by one, until it is finished."""
    request = Request(
        id="a", arrival=0, tokens=[0], num_prompt=1, params=SamplingParams(**options), seed=0,
        max_len=99, stop_ids=frozenset(), eos_ids=frozenset(),
    )  # fmt: skip
    transcript = Transcript([request], PieceTokenizer(FOX, special=5))

    def on_stop(stopped: Request, reason: FinishReason, why: str) -> None:
        stopped.status = Status.FINISHED
        stopped.finish_reason, stopped.stop_reason = reason, why

    outputs = []
    for number, token in enumerate(ids, 1):
        request.tokens.append(token)
        if number == len(ids) and finish_reason is not None:
            request.status, request.finish_reason = Status.FINISHED, finish_reason
        output = transcript.advance(on_stop)
        assert output is not None
        outputs.append(output.outputs[0])
        if request.is_finished:
            break
    check_cumulative(outputs)
    return outputs


def check_cumulative(outputs: Sequence[CompletionOutput]) -> None:
    """The deltas add up to every snapshot's text and ids."""
    text, ids = "", []
    for output in outputs:
        text, ids = text + output.delta_text, ids + output.delta_token_ids
        assert (output.text, output.token_ids) == (text, ids)


def test_a_stop_string_across_tokens() -> None:
    """B53."""
    outputs = told([0, 1, 2, 3], "length", stop="own fox")
    assert [each.delta_text for each in outputs] == ["The quick br", "", ""]
    last = outputs[-1]
    assert (last.text, last.finish_reason, last.stop_reason) == ("The quick br", "stop", "own fox")
    assert last.token_ids == [0, 1, 2]


def test_a_stop_string_across_tokens_that_is_included() -> None:
    """B53."""
    last = told([0, 1, 2, 3], "length", stop="own fox", include_stop_str_in_output=True)[-1]
    assert (last.text, last.stop_reason) == ("The quick brown fox", "own fox")


@pytest.mark.parametrize("reason", ["length", "stop", "abort"])
def test_what_is_held_is_released_at_the_end(reason: str) -> None:
    """B53."""
    outputs = told([0, 1], reason, stop=["own fox"])
    assert [each.delta_text for each in outputs] == ["The quick br", "own"]
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == (reason, None)


def test_the_earliest_of_two_stop_strings() -> None:
    """B53."""
    last = told([0, 1, 2, 3], stop=["fox", "row"])[-1]
    assert (last.text, last.stop_reason) == ("The quick b", "row")


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_a_stop_string_outranks_the_end_that_comes_with_it(reason: str) -> None:
    last = told([0, 1], reason, stop=["brown"])[-1]
    assert (last.text, last.finish_reason, last.stop_reason) == ("The quick ", "stop", "brown")


@pytest.mark.parametrize(
    ("min_tokens", "text", "stop_reason"),
    [(0, "The ", "quick"), (1, "The quick br", "own"), (2, "The quick brown ", "fox"),
     (3, "The quick brown fox j", None)],
)  # fmt: skip
def test_the_token_after_min_tokens_is_the_first_to_stop(
    min_tokens: int, text: str, stop_reason: str | None
) -> None:
    """B54: like an end id, which is legal as token min_tokens + 1 at the earliest."""
    last = told(range(4), "length", stop=["quick", "own", "fox"], min_tokens=min_tokens)[-1]
    assert (last.text, last.stop_reason) == (text, stop_reason)


def test_a_character_cut_by_the_end_is_one_replacement() -> None:
    """B51."""
    assert told([1, 4], "length", stop="xyz")[-1].text == "own\ufffd"


def test_a_character_cut_by_the_end_may_complete_a_stop_string() -> None:
    assert told([1, 4], "length", stop="n\ufffd")[-1].text == "ow"


@pytest.mark.parametrize(("skip", "text"), [(True, "own"), (False, "ow")])
def test_a_special_token_is_matched_where_the_user_sees_it(skip: bool, text: str) -> None:
    assert told([1, 5], "stop", stop="n<eos", skip_special_tokens=skip)[-1].text == text


# -- what is refused ------------------------------------------------------------------------------


def test_stop_strings_without_text_are_refused() -> None:
    with pytest.raises(ValueError, match="stop='x'.*detokenize=True"):
        SamplingParams(stop="x", detokenize=False)
    assert SamplingParams(stop=[], detokenize=False).stop_strings == ()


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    engine = make_engine()
    with pytest.raises(ValueError, match=r"stop=\['x'\].*no tokenizer"):
        engine.add_request("a", PROMPT, SamplingParams(stop=["x"]))
    engine.add_request("a", PROMPT, SamplingParams(stop=[]))


# -- the engine -----------------------------------------------------------------------------------

PROMPT = [8, 17, 55, 3, 52]
PROMPTS = [PROMPT, [1, 2, 3], [9] * 40, [5, 6]]
# Two letters for each id of the tiny vocabulary: a stop string of two may lie across two tokens.
LETTERS = PieceTokenizer([chr(97 + i // 12) + chr(97 + i % 12) for i in range(128)])


def greedy(max_tokens: int = 16, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **options)


def lettered(**options: Any) -> Engine:
    return make_engine(tokenizer=LETTERS, **options)


def served(engine: Engine, **requests: SamplingParams) -> dict[str, CompletionOutput]:
    """Last output of each request on PROMPT; checks the deltas and that all blocks came home."""
    for name, params in requests.items():
        engine.add_request(name, PROMPT, params)
    return {name: outputs[0] for name, outputs in collected(steps(engine)).items()}


def steps(engine: Engine) -> Iterator[RequestOutput]:
    while engine.has_unfinished_requests():
        yield from engine.step()


def collected(outputs: Iterator[RequestOutput]) -> dict[str, list[CompletionOutput]]:
    """Last outputs of each request's samples; checks that each one's deltas add up."""
    seen: dict[str, list[RequestOutput]] = {}
    for output in outputs:
        seen.setdefault(output.request_id, []).append(output)
    for each in seen.values():
        assert each[-1].finished
        for index in range(len(each[0].outputs)):
            check_cumulative([output.outputs[index] for output in each])
    return {name: each[-1].outputs for name, each in seen.items()}


def check_all_home(engine: Engine) -> None:
    stats = engine.stats()
    engine.scheduler.check()
    assert stats.num_running == stats.num_waiting == stats.num_referenced_blocks == 0


def across(text: str, token: int) -> str:
    """The last letter of an output token and the first of the next one."""
    return text[2 * token + 1 : 2 * token + 3]


def cut_of(free: CompletionOutput, stop: str, include: bool = False) -> tuple[Any, ...]:
    """What a request becomes that stops at a string of the text it would have had."""
    position = free.text.index(stop)
    last = (position + len(stop) - 1) // 2  # the token that completes it
    text = free.text[: position + include * len(stop)]
    return text, free.token_ids[: last + 1], "stop", stop


def facts(output: CompletionOutput) -> tuple[Any, ...]:
    return output.text, output.token_ids, output.finish_reason, output.stop_reason


@pytest.fixture(scope="module")
def free() -> CompletionOutput:
    """What PROMPT's greedy output is without stop strings."""
    return served(lettered(), a=greedy())["a"]


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("steps_in_flight", [0, 1])
def test_a_request_stops_across_tokens(
    steps_in_flight: int, include: bool, free: CompletionOutput
) -> None:
    stop = across(free.text, 4)
    engine = lettered(steps_in_flight=steps_in_flight)
    params = greedy(stop=stop, include_stop_str_in_output=include)
    assert facts(served(engine, a=params)["a"]) == cut_of(free, stop, include)
    check_all_home(engine)


@pytest.mark.parametrize("steps_in_flight", [0, 1])
def test_neighbours_do_not_notice(steps_in_flight: int, free: CompletionOutput) -> None:
    engine = lettered(steps_in_flight=steps_in_flight)
    stops = [across(free.text, token) for token in (1, 5, 9)]
    wanted = {f"stop at {stop}": greedy(stop=[stop]) for stop in stops}
    outputs = served(engine, **wanted, free=greedy(), never=greedy(stop="!"))
    for stop in stops:
        assert facts(outputs[f"stop at {stop}"]) == cut_of(free, stop)
    assert facts(outputs["free"]) == facts(outputs["never"]) == facts(free)
    check_all_home(engine)


def test_a_slot_freed_by_a_stop_string_is_used_again(free: CompletionOutput) -> None:
    engine = lettered(max_num_seqs=1)
    stop = across(free.text, 3)
    outputs = served(engine, first=greedy(stop=stop), second=greedy(), third=greedy(stop=stop))
    assert facts(outputs["second"]) == facts(free)
    assert facts(outputs["first"]) == facts(outputs["third"]) == cut_of(free, stop)
    check_all_home(engine)


def test_the_beginning_of_a_stop_string_is_released_at_length(free: CompletionOutput) -> None:
    outputs = served(lettered(), a=greedy(stop=free.text[-3:] + "!"))
    assert facts(outputs["a"]) == facts(free)


def test_a_stop_string_outranks_length_and_stop_ids(free: CompletionOutput) -> None:
    stop, (*_, last) = across(free.text, 4), free.token_ids[:6]
    whole = {"stop": stop, "include_stop_str_in_output": True}  # the stop id's text counts
    outputs = served(
        lettered(), length=greedy(6, stop=stop), stop=greedy(stop_token_ids=[last], **whole)
    )
    assert facts(outputs["length"]) == cut_of(free, stop)
    assert facts(outputs["stop"]) == cut_of(free, stop, include=True)


def test_the_text_of_a_stop_id_completes_no_stop_string(free: CompletionOutput) -> None:
    stop, ids = across(free.text, 4), free.token_ids[:6]
    output = served(lettered(), a=greedy(stop=stop, stop_token_ids=[ids[-1]]))["a"]
    assert facts(output) == (free.text[:10], ids, "stop", ids[-1])


def test_min_tokens_lets_a_stop_string_pass(free: CompletionOutput) -> None:
    early, late = across(free.text, 2), across(free.text, 7)
    assert free.text.count(early) == 1
    params = {
        count: greedy(stop=[early, late], min_tokens=count) for count in (3, 4)
    }  # token 4 completes `early`
    outputs = served(lettered(), three=params[3], four=params[4])
    assert facts(outputs["three"]) == cut_of(free, early)
    assert facts(outputs["four"]) == cut_of(free, late)


@pytest.mark.parametrize("steps_in_flight", [0, 1])
def test_each_of_n_samples_stops_by_itself(steps_in_flight: int) -> None:
    options = {"n": 3, "seed": 7, "max_tokens": 20, "ignore_eos": True}
    engine = lettered(steps_in_flight=steps_in_flight)
    engine.add_request("free", PROMPT, SamplingParams(**options))
    free = collected(steps(engine))["free"]
    stops = [across(free[0].text, 3), across(free[1].text, 8)]
    engine.add_request("a", PROMPT, SamplingParams(**options, stop=stops))
    outputs = collected(steps(engine))["a"]
    for sample, whole in zip(outputs, free, strict=True):
        text, stop = end_of([whole.text[i : i + 2] for i in range(0, 40, 2)], stops, include=False)
        assert (sample.text, sample.stop_reason) == (text, stop)
        assert sample.token_ids == whole.token_ids[: len(sample.token_ids)]
        assert sample.finish_reason == ("stop" if stop else "length")
    assert len({len(each.token_ids) for each in outputs}) > 1
    check_all_home(engine)


def test_a_stream_shows_no_part_of_a_stop_string(free: CompletionOutput) -> None:
    llm = LLM.from_params(*tiny("base"), LETTERS, num_blocks=64, max_num_seqs=8)
    stop = free.text[7:12]
    outputs = list(llm.stream(PROMPT, greedy(stop=stop)))
    check_cumulative([each.outputs[0] for each in outputs])
    assert all(free.text[:7].startswith(each.outputs[0].text) for each in outputs)
    assert facts(outputs[-1].outputs[0]) == cut_of(free, stop)
    together = llm.generate([PROMPT] * 2, greedy(stop=stop), use_tqdm=False)
    assert [facts(each.outputs[0]) for each in together] == [cut_of(free, stop)] * 2
    check_all_home(llm.engine)


@pytest.mark.parametrize("steps_in_flight", [0, 1])
def test_preemption_and_the_prefix_cache_change_no_text(steps_in_flight: int) -> None:
    large, small = lettered(), lettered(
        num_blocks=12, block_size=8, steps_in_flight=steps_in_flight
    )  # fmt: skip
    prompts = {str(i): [(7 * i + j) % 120 for j in range(10 + 5 * i)] for i in range(6)}
    stops = {}
    for name, prompt in prompts.items():
        large.add_request(name, prompt, greedy(len(prompt) + 20))
    whole = {name: outputs[0] for name, outputs in collected(steps(large)).items()}
    for name, prompt in prompts.items():
        stops[name] = across(whole[name].text, len(prompt))
        for twin in ("first", "again"):
            params = greedy(len(prompt) + 20, stop=stops[name], cache_salt="twins")
            small.add_request(f"{name} {twin}", prompt, params)
    outputs = collected(steps(small))
    assert small.stats().num_preemptions > 0
    assert small.stats().prefix_hit_tokens > 0
    for name, stop in stops.items():
        for twin in ("first", "again"):
            assert facts(outputs[f"{name} {twin}"][0]) == cut_of(whole[name], stop)
    check_all_home(small)


def advance(engine: Engine, name: str, num_tokens: int) -> CompletionOutput:
    """Step until a request has so many output tokens; its last snapshot."""
    for output in steps(engine):
        if output.request_id == name and len(output.outputs[0].token_ids) == num_tokens:
            return output.outputs[0]
    raise AssertionError(f"{name} ended before it had {num_tokens} tokens")


def test_a_fork_goes_on_from_what_its_parent_holds(free: CompletionOutput) -> None:
    engine = lettered(steps_in_flight=0)
    stop = free.text[7:14]
    engine.add_request("parent", PROMPT, greedy(stop=stop))
    assert advance(engine, "parent", 5).text == free.text[:7]  # the rest is held
    engine.fork("parent", ["child"])
    outputs = {each.request_id: each.outputs[0] for each in steps(engine)}
    assert facts(outputs["child"]) == facts(outputs["parent"]) == cut_of(free, stop)
    check_all_home(engine)


def test_rollback_takes_back_what_was_held(free: CompletionOutput) -> None:
    engine = lettered(steps_in_flight=0)
    stop = free.text[7:14]
    engine.add_request("a", PROMPT, greedy(stop=stop))
    advance(engine, "a", 6)
    engine.rollback("a", 3)
    shown, outputs = free.text[:6], [each.outputs[0] for each in steps(engine)]
    assert shown + "".join(each.delta_text for each in outputs) == free.text[:7]
    assert facts(outputs[-1]) == cut_of(free, stop)
    check_all_home(engine)


def test_abort_releases_what_is_held(free: CompletionOutput) -> None:
    engine = lettered(steps_in_flight=0)
    engine.add_request("a", PROMPT, greedy(stop=free.text[7:14]))
    advance(engine, "a", 5)
    output = engine.abort_request("a")
    assert output is not None
    last = output.outputs[0]
    assert (last.text, last.delta_text) == (free.text[:10], free.text[7:10])
    assert (last.finish_reason, last.stop_reason) == ("abort", None)
    check_all_home(engine)


def test_a_cut_character_after_a_prompt_that_cuts_one() -> None:
    """B51, through the engine: no text of the prompt, and one replacement at the end."""
    first, second = served(lettered(), a=greedy(2))["a"].token_ids
    pieces: list[str | bytes] = ["?"] * 128
    pieces[PROMPT[-1]] = b"?\xf0\x9f"
    pieces[first], pieces[second] = "é", b"!\xf0\x9f\x8c"
    engine = make_engine(tokenizer=PieceTokenizer(pieces))
    outputs = served(engine, plain=greedy(2), stop=greedy(2, stop="?"))
    assert outputs["plain"].text == outputs["stop"].text == "é!\ufffd"
