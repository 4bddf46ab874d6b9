"""The prefix cache through the engine: hits, eviction, and new weights."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from pagedjax import Engine, EngineConfig
from tests.support.engine_runs import check_all_home, greedy, prompt_of, run_one, solo
from tests.support.tiny_llama import finished, make_engine, tiny


@pytest.mark.parametrize(
    ("length", "block_size", "cached"),
    [(32, 16, 16), (33, 16, 32), (31, 16, 16), (16, 16, 0), (17, 16, 16), (5, 1, 4), (1, 1, 0),
     (13, 4, 12)],
)  # fmt: skip
def test_a_second_run_hits_all_but_the_last_token(
    length: int, block_size: int, cached: int
) -> None:
    engine = make_engine(block_size=block_size, num_blocks=256)
    prompt = prompt_of(length)
    first, second = (run_one(engine, prompt, greedy(4)) for _ in range(2))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, cached)
    assert second.outputs[0].token_ids == first.outputs[0].token_ids == solo(prompt, greedy(4))
    assert engine.stats().prefix_hit_tokens == cached
    assert engine.stats().prefix_query_tokens == 2 * length


def test_a_longer_prompt_hits_through_an_unbroken_chain() -> None:
    engine = make_engine()
    prompt = prompt_of(48)
    for _ in range(2):
        run_one(engine, prompt[:32], greedy(1))
    output = run_one(engine, prompt, greedy(4))
    assert output.num_cached_tokens == 32
    assert output.outputs[0].token_ids == solo(prompt, greedy(4))


def test_generated_tokens_are_cached_too() -> None:
    engine = make_engine()
    prompt = prompt_of(20)
    answer = run_one(engine, prompt, greedy(30)).outputs[0].token_ids
    turn = prompt + answer + [3, 4, 5]
    output = run_one(engine, turn, greedy(4))
    assert output.num_cached_tokens == 48  # 20 + 30 tokens, the last without a key: 3 blocks
    assert output.outputs[0].token_ids == solo(turn, greedy(4))


def test_an_equal_second_block_under_another_first_is_no_hit() -> None:
    engine = make_engine()
    run_one(engine, prompt_of(16, 1) + prompt_of(17, 5), greedy(1))
    assert run_one(engine, prompt_of(16, 2) + prompt_of(17, 5), greedy(1)).num_cached_tokens == 0


def test_requests_with_other_cache_salts_do_not_hit() -> None:
    engine = make_engine()
    prompt = prompt_of(40)
    cached = [
        run_one(engine, prompt, greedy(1, cache_salt=salt)).num_cached_tokens
        for salt in (None, "a", "b", "a", None)
    ]
    assert cached == [0, 0, 0, 32, 32]


def test_a_disabled_prefix_cache_has_no_hits() -> None:
    engine = make_engine(enable_prefix_caching=False)
    for _ in range(2):
        assert run_one(engine, prompt_of(40), greedy(2)).num_cached_tokens == 0
    assert engine.stats().num_free_blocks == engine.stats().num_blocks


def test_a_prompt_may_hit_what_is_still_being_computed() -> None:
    """Blocks enter the cache when their step is scheduled, so the next step may hit them."""
    engine = make_engine(max_num_batched_tokens=32, steps_in_flight=1)
    prompt = prompt_of(60)
    engine.add_request("a", prompt, greedy(5))
    engine.step()
    engine.add_request("b", prompt, greedy(5))
    outputs = {each.request_id: each for each in engine.run()}
    assert outputs["b"].num_cached_tokens > 0
    expected = solo(prompt, greedy(5))
    assert [outputs[name].outputs[0].token_ids for name in "ab"] == [expected] * 2


def test_cached_blocks_are_evicted_when_the_pool_is_needed() -> None:
    engine = make_engine(num_blocks=8)
    for start in range(12):
        prompt = prompt_of(40, start)
        assert run_one(engine, prompt, greedy(20)).outputs[0].token_ids == solo(prompt, greedy(20))
    assert engine.stats().num_preemptions == 0
    check_all_home(engine)


def test_a_warm_run_scores_like_a_cold_one() -> None:
    """A hit reuses keys that were computed in chunks of other sizes."""
    engine = make_engine(max_num_batched_tokens=16)
    prompt = prompt_of(100)
    cold = engine.compute_logprobs([prompt])[0]
    run_one(engine, prompt, greedy(1))
    warm = engine.compute_logprobs([prompt])[0]
    assert np.abs(cold - warm).max() < 1e-4


def test_new_weights_never_hit_old_keys() -> None:
    config, params = tiny("base")
    other = jax.tree.map(lambda leaf: leaf * 1.5, params)
    engine = make_engine()
    prompt = prompt_of(33)
    run_one(engine, prompt, greedy(6))
    engine.update_params(other)
    output = run_one(engine, prompt, greedy(6))
    fresh = Engine(config, other, EngineConfig(num_blocks=64, max_num_seqs=8))
    assert output.num_cached_tokens == 0
    assert output.outputs[0].token_ids == run_one(fresh, prompt, greedy(6)).outputs[0].token_ids
    engine.update_params(params, keep_prefix_cache=True)  # the caller vouches for the cached keys
    assert run_one(engine, prompt, greedy(6)).num_cached_tokens == 32


def test_a_request_that_spans_an_update_caches_no_block() -> None:
    engine = make_engine(block_size=4)
    engine.add_request("a", prompt_of(10), greedy(20))
    for _ in range(4):
        engine.step()
    engine.update_params(jax.tree.map(lambda leaf: leaf * 1.5, tiny("base")[1]))
    done = finished(engine.run())["a"]
    output = run_one(engine, prompt_of(10) + done, greedy(1))
    assert output.num_cached_tokens == 0


def test_reset_prefix_cache_drops_every_block() -> None:
    engine = make_engine()
    run_one(engine, prompt_of(40), greedy(2))
    engine.reset_prefix_cache()
    assert engine.stats().num_free_blocks == engine.stats().num_blocks
    assert run_one(engine, prompt_of(40), greedy(2)).num_cached_tokens == 0
