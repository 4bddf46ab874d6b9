"""Requests that end at stop strings: alone, in batches, and after forks or preemption."""

from __future__ import annotations

from typing import Any

import pytest

from pagedjax import LLM, CompletionOutput, Engine, SamplingParams
from tests.support.byte_tokenizer import PieceTokenizer
from tests.support.engine_runs import (
    PROMPT,
    check_all_home,
    check_cumulative,
    collected,
    greedy,
    steps,
)
from tests.support.stop_reference import end_of
from tests.support.tiny_llama import make_engine, tiny

# Two letters for each id of the tiny vocabulary, so that a stop string can span two tokens.
LETTERS = PieceTokenizer([chr(97 + i // 12) + chr(97 + i % 12) for i in range(128)])


def lettered(**options: Any) -> Engine:
    return make_engine(tokenizer=LETTERS, **options)


def served(engine: Engine, **requests: SamplingParams) -> dict[str, CompletionOutput]:
    """Serve the requests with PROMPT and check their deltas; the final output of each."""
    for name, params in requests.items():
        engine.add_request(name, PROMPT, params)
    return {name: outputs[0] for name, outputs in collected(steps(engine)).items()}


def across(text: str, token: int) -> str:
    """The last letter of output token number `token` and the first letter of the next token."""
    return text[2 * token + 1 : 2 * token + 3]


def cut_of(free: CompletionOutput, stop: str, include: bool = False) -> tuple[Any, ...]:
    """The expected `facts` of a request that stops at `stop`, from its unstopped output."""
    position = free.text.index(stop)
    last = (position + len(stop) - 1) // 2  # the token that completes it
    text = free.text[: position + include * len(stop)]
    return text, free.token_ids[: last + 1], "stop", stop


def facts(output: CompletionOutput) -> tuple[Any, ...]:
    return output.text, output.token_ids, output.finish_reason, output.stop_reason


@pytest.fixture(scope="module")
def free() -> CompletionOutput:
    """PROMPT's greedy output without stop strings."""
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
def test_a_stop_string_does_not_affect_other_requests(
    steps_in_flight: int, free: CompletionOutput
) -> None:
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
def test_each_of_n_samples_stops_independently(steps_in_flight: int) -> None:
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
    """Step until a request has `num_tokens` output tokens; its last snapshot."""
    for output in steps(engine):
        if output.request_id == name and len(output.outputs[0].token_ids) == num_tokens:
            return output.outputs[0]
    raise AssertionError(f"{name} ended before it had {num_tokens} tokens")


def test_a_fork_continues_with_the_held_text_of_its_parent(free: CompletionOutput) -> None:
    engine = lettered(steps_in_flight=0)
    stop = free.text[7:14]
    engine.add_request("parent", PROMPT, greedy(stop=stop))
    assert advance(engine, "parent", 5).text == free.text[:7]  # the rest is held back
    engine.fork("parent", ["child"])
    outputs = {each.request_id: each.outputs[0] for each in steps(engine)}
    assert facts(outputs["child"]) == facts(outputs["parent"]) == cut_of(free, stop)
    check_all_home(engine)


def test_rollback_drops_held_text(free: CompletionOutput) -> None:
    engine = lettered(steps_in_flight=0)
    stop = free.text[7:14]
    engine.add_request("a", PROMPT, greedy(stop=stop))
    advance(engine, "a", 6)
    engine.rollback("a", 3)
    shown, outputs = free.text[:6], [each.outputs[0] for each in steps(engine)]
    assert shown + "".join(each.delta_text for each in outputs) == free.text[:7]
    assert facts(outputs[-1]) == cut_of(free, stop)
    check_all_home(engine)


def test_abort_releases_held_text(free: CompletionOutput) -> None:
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
    """In the engine: no text of the prompt, and one replacement character at the end."""
    first, second = served(lettered(), a=greedy(2))["a"].token_ids
    pieces: list[str | bytes] = ["?"] * 128
    pieces[PROMPT[-1]] = b"?\xf0\x9f"
    pieces[first], pieces[second] = "é", b"!\xf0\x9f\x8c"
    engine = make_engine(tokenizer=PieceTokenizer(pieces))
    outputs = served(engine, plain=greedy(2), stop=greedy(2, stop="?"))
    assert outputs["plain"].text == outputs["stop"].text == "é!\ufffd"
