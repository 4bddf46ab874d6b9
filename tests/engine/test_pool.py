"""The KV pool of an engine: its limits, its contents, its data type, and its statistics."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.engine_runs import PROMPT, check_all_home, greedy, solo
from tests.support.tiny_llama import GREEDY, finished, make_engine

pytestmark = pytest.mark.usefixtures("attention")


def test_a_prompt_that_can_never_fit_is_refused_and_others_are_served() -> None:
    engine = make_engine(num_blocks=4)
    with pytest.raises(ValueError, match="80 tokens need 5 KV blocks.*has 4"):
        engine.add_request("big", [1] * 80, GREEDY)
    engine.add_request("small", [1] * 8, GREEDY)
    assert len(finished(engine.run(max_steps=40))["small"]) == 16


@pytest.mark.parametrize("steps_in_flight", [0, 1])
def test_a_request_that_outgrows_the_pool_alone_ends_with_length(steps_in_flight: int) -> None:
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
    expected[0, : len(PROMPT) + 2] = True  # the last token's key is never written
    np.testing.assert_array_equal(changed, expected)


def test_unused_pool_content_never_reaches_a_result() -> None:
    engine = make_engine(num_blocks=8)
    state = engine._runner._state
    poison = jax.tree.map(lambda pool: jnp.full_like(pool, jnp.nan), state.cache)
    engine._runner._state = dataclasses.replace(state, cache=poison)
    engine.add_request("a", PROMPT, GREEDY)
    assert finished(engine.run())["a"] == solo(PROMPT, GREEDY)


def test_a_pool_in_another_dtype_than_the_params() -> None:
    engine = make_engine(kv_cache_dtype="bfloat16")
    assert str(engine._runner._state.cache.k.dtype) == "bfloat16"
    engine.add_request("a", PROMPT, greedy(4))
    assert len(finished(engine.run())["a"]) == 4


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
