"""The end of a request: EOS, stop token ids, max_tokens and max_model_len."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pagedjax import Engine, EngineConfig
from tests.support import tiny_llama
from tests.support.engine_runs import PROMPT, check_all_home, greedy, solo
from tests.support.tiny_llama import GREEDY, finished, make_engine, tiny

pytestmark = pytest.mark.usefixtures("attention")


def end_at(token: int, **options: Any) -> Engine:
    """An engine whose model has `token` among its EOS ids."""
    config, params = tiny("base")
    config = dataclasses.replace(config, eos_token_ids=(127, token))
    options = {"attention": tiny_llama.DEFAULT_ATTENTION, **options}
    return Engine(config, params, EngineConfig(num_blocks=64, max_num_seqs=8, **options))


@pytest.mark.parametrize("steps_in_flight", [0, 1])
def test_any_id_of_the_eos_list_stops(steps_in_flight: int) -> None:
    free = solo(PROMPT, greedy(10))
    engine = end_at(free[2], steps_in_flight=steps_in_flight)
    engine.add_request("a", PROMPT, greedy(10, ignore_eos=False))
    output = engine.run()[0].outputs[0]
    assert (output.token_ids, output.finish_reason) == (free[:3], "stop")
    assert output.stop_reason is None
    check_all_home(engine)


def test_ignore_eos_runs_past_every_eos() -> None:
    free = solo(PROMPT, greedy(10))
    engine = end_at(free[2])
    engine.add_request("a", PROMPT, greedy(10))
    output = engine.run()[0].outputs[0]
    assert (output.token_ids, output.finish_reason) == (free, "length")


def test_stop_token_ids_stop_even_when_eos_is_ignored() -> None:
    free = solo(PROMPT, greedy(10))
    engine = end_at(free[2])
    engine.add_request("a", PROMPT, greedy(10, stop_token_ids=[free[2]]))
    output = engine.run()[0].outputs[0]
    assert (output.token_ids, output.finish_reason) == (free[:3], "stop")
    assert output.stop_reason == free[2]


def test_max_tokens_of_one_needs_no_decode_step() -> None:
    engine = make_engine(steps_in_flight=0)
    engine.add_request("a", PROMPT, greedy(1))
    outputs = engine.run()
    assert len(finished(outputs)["a"]) == 1
    assert engine.stats().steps == 1


@pytest.mark.parametrize("length", [16, 17])
def test_a_prompt_that_leaves_no_room_is_refused(length: int) -> None:
    engine = make_engine(max_model_len=16)
    with pytest.raises(ValueError, match=f"{length} tokens.*max_model_len=16"):
        engine.add_request("a", [1] * length, GREEDY)
    engine.add_request("a", PROMPT, greedy(2))
    assert len(finished(engine.run())["a"]) == 2


def test_output_ends_at_max_model_len() -> None:
    engine = make_engine(max_model_len=16)
    engine.add_request("a", [1] * 15, greedy(10))
    output = engine.run()[0].outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (1, "length")
