"""Requests by their ids: added, aborted, forked and rolled back; outputs and refused prompts."""

from __future__ import annotations

from typing import Any

import pytest

from pagedjax import SamplingParams
from tests.support.engine_runs import PROMPT, check_all_home, greedy, solo
from tests.support.tiny_llama import GREEDY, finished, make_engine

pytestmark = pytest.mark.usefixtures("attention")


def test_a_live_id_is_refused_and_the_first_is_unharmed() -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    engine.step()
    with pytest.raises(ValueError, match="request id 'a' is in use"):
        engine.add_request("a", [1, 2], GREEDY)
    assert finished(engine.run()) == {"a": solo(PROMPT, GREEDY)}


def test_an_id_may_be_used_again_after_abort() -> None:
    engine = make_engine()
    engine.add_request("a", [9, 9, 9], GREEDY)
    for _ in range(3):
        engine.step()
    engine.abort_request("a")
    engine.add_request("a", PROMPT, GREEDY)
    assert finished(engine.run()) == {"a": solo(PROMPT, GREEDY)}
    check_all_home(engine)


def test_abort_of_an_unknown_id_does_nothing() -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    assert engine.abort_request("b") is None
    engine.abort_request("a")
    assert engine.abort_request("a") is None


@pytest.mark.parametrize("steps_in_flight", [0, 1])
@pytest.mark.parametrize("steps_before", [0, 1, 2, 5])
def test_abort_at_any_moment(steps_before: int, steps_in_flight: int) -> None:
    engine = make_engine(steps_in_flight=steps_in_flight, max_num_batched_tokens=16)
    engine.add_request("gone", list(range(60)), GREEDY)
    engine.add_request("stays", PROMPT, GREEDY)
    outputs = [output for _ in range(steps_before) for output in engine.step()]
    final = engine.abort_request("gone")
    assert final is not None
    assert final.finished and final.outputs[0].finish_reason == "abort"
    outputs += engine.run()
    assert finished(outputs) == {"stays": solo(PROMPT, GREEDY)}
    assert not [each for each in outputs if each.request_id == "gone" and each.finished]
    check_all_home(engine)


def test_abort_of_the_only_request_leaves_nothing_to_report() -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    engine.abort_request("a")
    assert engine.step() == []
    assert not engine.has_unfinished_requests()
    engine.add_request("b", PROMPT, GREEDY)
    engine.step()
    engine.abort_request("b")
    assert engine.step() == []
    check_all_home(engine)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "is empty"),
        ("text", "there is no tokenizer"),
        ([1, 128], "token id 128 in the prompt is outside the vocabulary of 128"),
        ([-1], "token id -1 in the prompt"),
        ([1.5], "must be a string or a list of token ids"),
        (None, "must be a string or a list of token ids"),
    ],
)
def test_bad_prompts_are_refused_and_the_engine_goes_on(prompt: Any, message: str) -> None:
    engine = make_engine()
    with pytest.raises(ValueError, match=message):
        engine.add_request("bad", prompt, GREEDY)
    engine.add_request("good", PROMPT, greedy(2))
    assert len(finished(engine.run())["good"]) == 2


def test_stop_token_ids_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(ValueError, match="token id 128 in stop_token_ids"):
        make_engine().add_request("a", PROMPT, SamplingParams(stop_token_ids=[128]))


def test_outputs_are_cumulative_snapshots_with_deltas() -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    seen: list[int] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            seen += output.outputs[0].delta_token_ids
            assert output.outputs[0].token_ids == seen
            assert output.prompt_token_ids == PROMPT
            assert output.finished == (output.outputs[0].finish_reason is not None)
    assert len(seen) == 16


def test_an_id_with_unread_output_is_in_use() -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    engine.compute_logprobs([[5, 6, 7] * 40] * 3)  # steps until "a" has finished as well
    while engine.scheduler.has_unfinished():
        engine.unread(engine.step())
    with pytest.raises(ValueError, match="'a' is in use"):
        engine.add_request("a", PROMPT, GREEDY)
    engine.add_request("b", PROMPT, GREEDY)
    with pytest.raises(ValueError, match="fork needs new, different ids"):
        engine.fork("b", ["a"])
    engine.abort_request("b")
    assert finished(engine.run()) == {"a": solo(PROMPT, GREEDY)}


def test_abort_of_a_finished_unread_request_returns_its_output_and_frees_its_id() -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    engine.compute_logprobs([[5, 6, 7] * 40] * 3)
    while engine.scheduler.has_unfinished():
        engine.unread(engine.step())
    final = engine.abort_request("a")
    assert final is not None and final.finished and final.outputs[0].finish_reason == "length"
    assert final.outputs[0].delta_token_ids == final.outputs[0].token_ids == solo(PROMPT, GREEDY)
    assert engine.abort_request("a") is None
    engine.add_request("a", PROMPT[::-1], GREEDY)
    assert finished(engine.run()) == {"a": solo(PROMPT[::-1], GREEDY)}


def test_abort_loses_no_unread_delta() -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    seen = [each for _ in range(4) for each in engine.step()]
    engine.update_params(engine.params)  # collects a token that only the next step would report
    final = engine.abort_request("a")
    assert final is not None
    seen.append(final)
    deltas = [token for each in seen for token in each.outputs[0].delta_token_ids]
    assert deltas == final.outputs[0].token_ids


@pytest.mark.parametrize("number", [1.0, -1, True, "1", None])
def test_a_rollback_by_an_invalid_number_of_tokens_is_refused(number: Any) -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    while not engine.step():
        pass
    with pytest.raises(ValueError, match=f"num_tokens={number!r} must be an int from 0 to"):
        engine.rollback("a", number)


def test_a_string_is_refused_as_a_list_of_ids() -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    with pytest.raises(ValueError, match="new_request_ids='xy' must be a list"):
        engine.fork("a", "xy")
    with pytest.raises(ValueError, match="'abc' is one text"):
        engine.compute_logprobs("abc")  # type: ignore[arg-type]
