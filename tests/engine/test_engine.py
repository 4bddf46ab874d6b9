"""The engine's behaviour around the model: limits, lengths, stops, aborts, seeds, failures."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import freeze

from pagedjax import LLM, Engine, EngineConfig, SamplingParams
from pagedjax.step.in_flight import InFlight
from pagedjax.weights.params import flatten_tree
from tests.support import tiny_llama
from tests.support.tiny_llama import GREEDY, finished, make_engine, tiny

PROMPT = [8, 17, 55, 3, 52]  # its greedy output has no token twice at the start


INTERPRETED = pytest.param("pallas_interpret", marks=pytest.mark.slow)


@pytest.fixture(params=["xla", INTERPRETED], autouse=True)
def attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with the CPU's attention and, where there is time, the GPU's kernels."""
    monkeypatch.setattr(tiny_llama, "DEFAULT_ATTENTION", request.param)


def greedy(max_tokens: int, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, **{"ignore_eos": True, **options})


def solo(prompt: list[int], params: SamplingParams, **options: Any) -> list[int]:
    engine = make_engine(**options)
    engine.add_request("solo", prompt, params)
    return finished(engine.run())["solo"]


def check_all_home(engine: Engine) -> None:
    stats = engine.stats()
    engine.scheduler.check()
    assert stats.num_running == stats.num_waiting == 0
    assert stats.num_referenced_blocks == 0


def end_at(token: int, **options: Any) -> Engine:
    """An engine whose model ends its sequences with `token`."""
    config, params = tiny("base")
    config = dataclasses.replace(config, eos_token_ids=(127, token))
    options = {"attention": tiny_llama.DEFAULT_ATTENTION, **options}
    return Engine(config, params, EngineConfig(num_blocks=64, max_num_seqs=8, **options))


# -- stopping ------------------------------------------------------------------------------------


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


# -- the pool ------------------------------------------------------------------------------------


def test_a_prompt_that_can_never_fit_is_refused_and_others_are_served() -> None:
    engine = make_engine(num_blocks=4)
    with pytest.raises(ValueError, match="80 tokens need 5 KV blocks.*has 4"):
        engine.add_request("big", [1] * 80, GREEDY)
    engine.add_request("small", [1] * 8, GREEDY)
    assert len(finished(engine.run(max_steps=40))["small"]) == 16


@pytest.mark.parametrize("steps_in_flight", [0, 1])
def test_one_that_outgrows_the_pool_alone_ends_with_length(steps_in_flight: int) -> None:
    engine = make_engine(num_blocks=4, steps_in_flight=steps_in_flight)
    prompt = list(range(3, 63))
    engine.add_request("a", prompt, greedy(20))
    output = engine.run(max_steps=40)[0].outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (5, "length")
    assert output.token_ids == solo(prompt, greedy(5))
    check_all_home(engine)


@pytest.mark.parametrize("steps_in_flight", [0, 1])
def test_a_small_pool_changes_speed_and_never_tokens(steps_in_flight: int) -> None:
    prompts = {str(i): [(7 * i + j) % 120 for j in range(10 + 5 * i)] for i in range(6)}
    engine = make_engine(num_blocks=12, block_size=8, steps_in_flight=steps_in_flight)
    for name, prompt in prompts.items():
        engine.add_request(name, prompt, greedy(20 + len(prompt)))
    outputs = finished(engine.run(max_steps=2000))
    assert engine.stats().num_preemptions > 0
    assert outputs == {
        name: solo(prompt, greedy(20 + len(prompt))) for name, prompt in prompts.items()
    }
    check_all_home(engine)


def test_only_real_slots_of_the_pool_are_written() -> None:
    """Padding rows must not wrap around and overwrite the last block."""
    engine = make_engine(num_blocks=8, steps_in_flight=0)
    state = engine._runner._state
    sentinel = jax.tree.map(lambda pool: jnp.full_like(pool, 7.0), state.cache)
    engine._runner._state = dataclasses.replace(state, cache=sentinel)
    engine.add_request("a", PROMPT, greedy(3))
    engine.run()
    changed = np.asarray(engine._runner._state.cache.k != 7.0).any(axis=(0, 2, 4))  # [N, T]
    expected = np.zeros_like(changed)
    expected[0, : len(PROMPT) + 2] = True  # the last token's key is never needed
    np.testing.assert_array_equal(changed, expected)


def test_unused_pool_content_never_reaches_a_result() -> None:
    engine = make_engine(num_blocks=8)
    state = engine._runner._state
    poison = jax.tree.map(lambda pool: jnp.full_like(pool, jnp.nan), state.cache)
    engine._runner._state = dataclasses.replace(state, cache=poison)
    engine.add_request("a", PROMPT, GREEDY)
    assert finished(engine.run())["a"] == solo(PROMPT, GREEDY)


# -- ids, aborts, empty prompts --------------------------------------------------------------------


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


# -- sampling ------------------------------------------------------------------------------------

SEEDED = SamplingParams(temperature=1.0, seed=42, max_tokens=12, ignore_eos=True, top_p=0.95)


@pytest.mark.parametrize("steps_in_flight", [0, 1])
@pytest.mark.parametrize("neighbours", [0, 1, 5])
def test_a_seeded_request_is_the_same_beside_others(neighbours: int, steps_in_flight: int) -> None:
    engine = make_engine(steps_in_flight=steps_in_flight)
    for index in range(neighbours):  # they take the lower slots and grow at other times
        params = SamplingParams(temperature=0.7, max_tokens=3 + 4 * index, ignore_eos=True)
        engine.add_request(f"n{index}", [index + 1] * (3 + index), params)
    if neighbours:
        engine.step()
    engine.add_request("seeded", PROMPT, SEEDED)
    assert finished(engine.run())["seeded"] == solo(PROMPT, SEEDED)


def test_a_seeded_request_is_the_same_after_preemption_and_in_chunks() -> None:
    engine = make_engine(num_blocks=4, block_size=8, max_num_batched_tokens=3)
    engine.add_request("first", [1, 2, 3, 4], greedy(20))
    engine.add_request("seeded", PROMPT, SEEDED)
    outputs = finished(engine.run(max_steps=500))
    assert engine.stats().num_preemptions > 0
    assert outputs["seeded"] == solo(PROMPT, SEEDED)


def test_seeds_differ_and_are_reproducible_when_not_given() -> None:
    params = dataclasses.replace(SEEDED, seed=None)

    def three(seed: int) -> dict[str, list[int]]:
        engine = make_engine(seed=seed)
        for name in "abc":
            engine.add_request(name, PROMPT, params)
        return finished(engine.run())

    first = three(0)
    assert len({tuple(ids) for ids in first.values()}) == 3
    assert first == three(0)
    assert first != three(1)


def test_greedy_beside_random_rows_stays_greedy() -> None:
    engine = make_engine()
    engine.add_request("greedy", PROMPT, GREEDY)
    engine.add_request("random", PROMPT, SamplingParams(temperature=5.0, max_tokens=16))
    assert finished(engine.run())["greedy"] == solo(PROMPT, GREEDY)


# -- params --------------------------------------------------------------------------------------


def test_params_are_held_by_reference() -> None:
    config, params = tiny("base")
    engine = Engine(config, params, EngineConfig(num_blocks=8))
    assert engine.params is params


def test_update_params_changes_the_output_and_compiles_nothing() -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    before = finished(engine.run())["a"]
    compiled = engine.stats().num_compilations
    other = jax.tree.map(lambda leaf: leaf * 1.5, tiny("base")[1])
    engine.update_params(other)
    engine.add_request("a", PROMPT, GREEDY)
    after = finished(engine.run())["a"]
    assert after != before
    assert engine.stats().num_compilations == compiled
    config = tiny("base")[0]
    fresh = Engine(config, other, EngineConfig(num_blocks=64, max_num_seqs=8))
    fresh.add_request("a", PROMPT, GREEDY)
    assert finished(fresh.run())["a"] == after


def listed(params: Any) -> Any:
    return params | {"layers": list(params["layers"])}


def read_only(params: Any) -> Any:
    """A mapping that is no pytree of JAX."""
    return MappingProxyType(params | {"layers": tuple(map(MappingProxyType, params["layers"]))})


@pytest.mark.parametrize("form", [listed, freeze, OrderedDict, read_only])
def test_params_in_containers_of_another_type_are_the_same_params(form: Any) -> None:
    config, params = tiny("base")
    other = jax.tree.map(lambda leaf: leaf * 1.5, params)
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    before = finished(engine.run())["a"]
    compiled = engine.stats().num_compilations
    engine.update_params(form(other))
    engine.add_request("a", PROMPT, GREEDY)
    after = finished(engine.run())["a"]
    assert after != before
    assert engine.stats().num_compilations == compiled

    given = form(params)
    again = Engine(config, given, EngineConfig(num_blocks=64, max_num_seqs=8))
    assert again.params is given
    for tree, wanted in ((given, before), (other, after), (form(params), before)):
        again.update_params(tree)
        again.add_request("a", PROMPT, GREEDY)
        assert finished(again.run())["a"] == wanted


def test_update_params_of_another_dtype_is_refused_by_name() -> None:
    engine = make_engine()
    other = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), tiny("base")[1])
    with pytest.raises(ValueError, match="embed is bfloat16"):
        engine.update_params(other)
    assert engine.params is tiny("base")[1]


def test_deleted_params_are_named_with_the_remedy() -> None:
    config, params = tiny("base")
    copy = jax.tree.map(lambda leaf: leaf + 0, params)
    engine = Engine(config, copy, EngineConfig(num_blocks=64, max_num_seqs=8))
    engine.add_request("a", PROMPT, GREEDY)
    copy["layers"][1]["down"].delete()
    with pytest.raises(RuntimeError, match="layers/1/down was deleted.*update_params"):
        engine.step()
    engine.update_params(params)
    assert finished(engine.run())["a"] == solo(PROMPT, GREEDY)


def test_params_that_do_not_fit_are_refused() -> None:
    config, params = tiny("base")
    without = {name: leaf for name, leaf in params.items() if name != "head"}
    with pytest.raises(ValueError, match="head is missing"):
        Engine(config, without)
    with pytest.raises(TypeError, match="embed is a ndarray"):
        Engine(config, {**params, "embed": np.asarray(params["embed"])})


# -- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps_in_flight", [0, 1])
@pytest.mark.parametrize("lose_state", [False, True])
def test_a_failed_step_is_raised_and_the_next_ones_go_on(
    steps_in_flight: int, lose_state: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(steps_in_flight=steps_in_flight)
    engine.add_request("a", PROMPT, GREEDY)
    engine.add_request("b", PROMPT[::-1], SEEDED)
    outputs = [output for _ in range(4) for output in engine.step()]

    def fail(*_: Any) -> None:
        if lose_state:
            engine._runner._state.cache.k.delete()
        raise RuntimeError("device lost")

    with monkeypatch.context() as patch:
        patch.setattr(engine._runner._programs, "sample", fail)
        with pytest.raises(RuntimeError, match="device lost"):
            engine.step()
    outputs += engine.run()
    expected = {"a": solo(PROMPT, GREEDY), "b": solo(PROMPT[::-1], SEEDED)}
    assert finished(outputs) == expected
    check_all_home(engine)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_model_len": 1024}, ValueError, "max_model_len=1024 exceeds the 512 positions"),
        ({"num_blocks": None, "kv_cache_bytes": 100}, MemoryError, "100 bytes are left"),
        ({"attention": "pallas"}, ValueError, "'pallas' needs an NVIDIA GPU.*use 'xla'"),
    ],
)
def test_engine_options_that_do_not_fit(options: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        make_engine(**options)


# -- scoring, statistics, steps --------------------------------------------------------------------


def test_scoring_beside_running_requests_loses_no_output() -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    engine.step()
    scores = engine.compute_logprobs([list(range(100)), PROMPT])
    alone = make_engine().compute_logprobs([list(range(100))])[0]
    assert np.abs(scores[0] - alone).max() < 2e-5
    outputs = engine.run()
    assert finished(outputs) == {"a": solo(PROMPT, GREEDY)}
    deltas = [token for each in outputs for token in each.outputs[0].delta_token_ids]
    assert deltas == finished(outputs)["a"][-len(deltas) :]
    check_all_home(engine)


@pytest.mark.parametrize("bad", [[], [500], [1] * 600])
def test_scoring_names_the_bad_list_before_any_work(bad: list[int]) -> None:
    engine = make_engine()
    with pytest.raises(ValueError, match="token list 1"):
        engine.compute_logprobs([[1, 2], bad])
    assert engine.stats().steps == 0
    check_all_home(engine)


def test_scoring_leaves_nothing_in_the_prefix_cache() -> None:
    """Its keys come without scores for others, and would push out what others can use."""
    engine = make_engine(num_blocks=20, block_size=8)
    engine.add_request("a", list(range(40)), greedy(2))
    engine.run()
    cached = engine.stats().num_cached_blocks
    for _ in range(3):
        engine.compute_logprobs([[7] * 60, [7] * 50])
    assert engine.stats().num_cached_blocks == cached > 0
    check_all_home(engine)


def test_statistics_add_up_at_every_step() -> None:
    engine = make_engine(num_blocks=10)
    for index in range(6):
        engine.add_request(str(index), [index] * 20, greedy(12))
    while engine.has_unfinished_requests():
        engine.step()
        stats = engine.stats()
        blocks = stats.num_free_blocks + stats.num_cached_blocks + stats.num_referenced_blocks
        assert blocks == stats.num_blocks == 10
        assert 0 <= stats.kv_utilization <= 1
    assert engine.stats().generated_tokens == 6 * 12
    assert engine.stats().prompt_tokens == 6 * 20


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


def test_warmup_compiles_everything_that_serving_needs() -> None:
    engine = make_engine(max_num_seqs=3, max_num_batched_tokens=40)
    with pytest.raises(AssertionError, match="compiled: .*forward 3 40 3.*call warmup"):
        with engine.assert_no_compilation():
            report = engine.warmup()
    assert len(report.shapes) == len(report.seconds) == engine.stats().num_compilations
    random = np.random.RandomState(0)
    for index in range(40):
        params = SamplingParams(
            temperature=float(index % 3), top_k=int(random.randint(0, 9)), max_tokens=5,
            top_p=float(random.uniform(0.1, 1)), min_p=float(random.uniform(0, 0.2)),
            logprobs=None if index % 4 else 2, prompt_logprobs=None if index % 5 else 1,
            repetition_penalty=1.0 if index % 6 else 1.3, min_tokens=int(index % 7 == 0),
        )  # fmt: skip
        engine.add_request(str(index), [1] * random.randint(1, 200), params)
        if index % 7 == 0:
            engine.step()
    with engine.assert_no_compilation():
        engine.compute_logprobs([[1] * 90, [2] * 3])
        engine.run()
    assert engine.stats().num_compilations == len(report.shapes)


def test_no_program_copies_the_pool_or_a_weight() -> None:
    """The pool is updated in place: temporaries stay far below it, and outputs alias inputs."""
    engine = make_engine(num_blocks=4096, max_num_seqs=2, max_num_batched_tokens=16)
    engine.warmup()
    cache = engine._runner._state.cache
    pool_bytes = cache.k.nbytes + cache.v.nbytes
    weight = max(leaf.nbytes for leaf in flatten_tree(engine.params).values())
    for key, compiled in engine._runner._programs._compiled.items():
        memory = compiled.memory_analysis()
        if key[0] == "forward":
            assert memory.alias_size_in_bytes >= pool_bytes, key
            assert memory.temp_size_in_bytes < pool_bytes / 4, key
        assert f"copy(f32[{','.join(map(str, cache.k.shape))}]" not in compiled.as_text()
    assert weight < pool_bytes


def test_sines_and_cosines_are_taken_once_and_not_in_every_layer() -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, greedy(3))
    engine.run()
    forwards = {
        key: compiled.as_text()
        for key, compiled in engine._runner._programs._compiled.items()
        if key[0] == "forward"
    }
    assert len(engine.params["layers"]) > 1
    assert len(forwards) >= 2
    for key, text in forwards.items():
        assert (text.count(" sine("), text.count(" cosine(")) == (1, 1), key


def test_a_pool_in_another_dtype_than_the_params() -> None:
    engine = make_engine(kv_cache_dtype="bfloat16")
    assert str(engine._runner._state.cache.k.dtype) == "bfloat16"
    engine.add_request("a", PROMPT, greedy(4))
    assert len(finished(engine.run())["a"]) == 4


def test_an_id_whose_output_nobody_has_read_is_in_use() -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    engine.compute_logprobs([[5, 6, 7] * 40] * 3)  # which steps until "a" has ended, too
    while engine.scheduler.has_unfinished():
        engine.unread(engine.step())
    with pytest.raises(ValueError, match="'a' is in use"):
        engine.add_request("a", PROMPT, GREEDY)
    engine.add_request("b", PROMPT, GREEDY)
    with pytest.raises(ValueError, match="fork needs new, different ids"):
        engine.fork("b", ["a"])
    engine.abort_request("b")
    assert finished(engine.run()) == {"a": solo(PROMPT, GREEDY)}


def test_abort_of_one_that_has_ended_unread_gives_its_output_and_frees_its_id() -> None:
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


def test_abort_loses_no_delta_that_nobody_has_read() -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    seen = [each for _ in range(4) for each in engine.step()]
    engine.update_params(engine.params)  # takes up a token for the next step to tell
    final = engine.abort_request("a")
    assert final is not None
    seen.append(final)
    deltas = [token for each in seen for token in each.outputs[0].delta_token_ids]
    assert deltas == final.outputs[0].token_ids


def test_a_refused_request_changes_nobodys_seed() -> None:
    def drawn(engine: Engine) -> dict[str, list[int]]:
        engine.add_request("a", PROMPT, SamplingParams(max_tokens=8, ignore_eos=True))
        return finished(engine.run())

    engine = make_engine()
    with pytest.raises(ValueError, match="empty"):
        engine.add_request("bad", [])
    with pytest.raises(ValueError, match="token list 1: .* is empty"):
        engine.compute_logprobs([[1, 2], []])
    llm = LLM.from_params(engine.model_config, engine.params)
    llm.engine = engine
    with pytest.raises(ValueError, match="prompt 1: .* is empty"):
        llm.generate([[1], []])
    with pytest.raises(ValueError, match="is empty"):
        llm.beam_search([[1], []], beam_width=2, max_tokens=2)
    assert drawn(engine) == drawn(make_engine())


def test_an_interrupt_while_steps_are_finished_loses_no_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    outputs = [output for _ in range(4) for output in engine.step()]

    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(InFlight, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.update_params(engine.params)
    outputs += engine.run(max_steps=200)
    assert finished(outputs) == {"a": solo(PROMPT, GREEDY)}
    check_all_home(engine)


@pytest.mark.parametrize("number", [1.0, -1, True, "1", None])
def test_a_rollback_by_what_is_no_number_of_tokens(number: Any) -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    while not engine.step():
        pass
    with pytest.raises(ValueError, match=f"num_tokens={number!r} must be an int from 0 to"):
        engine.rollback("a", number)


def test_a_text_is_no_list_of_ids() -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    with pytest.raises(ValueError, match="new_request_ids='xy' must be a list"):
        engine.fork("a", "xy")
    with pytest.raises(ValueError, match="'abc' is one text"):
        engine.compute_logprobs("abc")  # type: ignore[arg-type]
