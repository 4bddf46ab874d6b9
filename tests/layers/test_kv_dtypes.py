"""Engines with one-byte KV pools."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pagedjax import Engine, SamplingParams
from tests.support.tiny_llama import finished, make_engine

SEEDED = SamplingParams(temperature=1.0, seed=11, max_tokens=12, ignore_eos=True)
KINDS = pytest.mark.parametrize("kind", ["int8", "fp8"])
# For tests in which the kinds differ only in the element type; fp8 runs in `make test-all`.
ONE_KIND = pytest.mark.parametrize("kind", ["int8", pytest.param("fp8", marks=pytest.mark.slow)])


def greedy(max_tokens: int, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **options)


def prompt_of(length: int, start: int = 0) -> list[int]:
    return [(start + 7 * i + i * i) % 120 for i in range(length)]


@cache
def one_at_a_time(kind: str) -> Engine:
    return make_engine(kv_cache_dtype=kind, enable_prefix_caching=False, max_num_seqs=1)


def solo(prompt: list[int], params: SamplingParams, kind: str) -> list[int]:
    engine = one_at_a_time(kind)
    engine.add_request("solo", prompt, params)
    return finished(engine.run())["solo"]


# -- tokens ---------------------------------------------------------------------------------------


@ONE_KIND
def test_tokens_are_the_same_alone_and_in_a_batch(kind: str) -> None:
    engine = make_engine(kv_cache_dtype=kind)
    asked = {
        str(index): (prompt_of(3 + 9 * index, index), (greedy(10 + index), SEEDED)[index % 2])
        for index in range(5)
    }
    for name, (prompt, params) in asked.items():
        engine.add_request(name, prompt, params)
    assert finished(engine.run()) == {name: solo(*each, kind) for name, each in asked.items()}


@ONE_KIND
def test_a_small_pool_and_small_chunks_change_no_token(kind: str) -> None:
    prompts = {str(i): prompt_of(10 + 5 * i, i) for i in range(6)}
    engine = make_engine(
        kv_cache_dtype=kind, num_blocks=12, block_size=8, max_num_batched_tokens=16
    )
    for name, prompt in prompts.items():
        engine.add_request(name, prompt, greedy(20 + len(prompt)))
    outputs = finished(engine.run(max_steps=2000))
    assert engine.stats().num_preemptions > 0
    assert outputs == {
        name: solo(prompt, greedy(20 + len(prompt)), kind) for name, prompt in prompts.items()
    }


@ONE_KIND
def test_a_prefix_hit_changes_no_token(kind: str) -> None:
    engine = make_engine(kv_cache_dtype=kind)
    outputs = []
    for _ in range(2):
        engine.add_request("a", prompt_of(50), greedy(20))
        outputs.append(engine.run()[-1])
    assert [each.num_cached_tokens for each in outputs] == [0, 48]
    expected = solo(prompt_of(50), greedy(20), kind)
    assert [each.outputs[0].token_ids for each in outputs] == [expected] * 2


@ONE_KIND
def test_samples_that_share_a_block_copy_it_with_its_scales(kind: str) -> None:
    """Six prompt tokens in blocks of 4: the second block is copied for all samples but one."""
    params = replace(SEEDED, n=4)
    engine = make_engine(kv_cache_dtype=kind, block_size=4)
    engine.add_request("n", prompt_of(6), params)
    together = [each.token_ids for each in engine.run()[-1].outputs]
    assert together[0] == solo(prompt_of(6), SEEDED, kind)
    apart = one_at_a_time(kind)
    apart.add_request("n", prompt_of(6), params)
    assert together == [each.token_ids for each in apart.run()[-1].outputs]
    assert any(key[0] == "copy" for key in engine._runner._programs._compiled)


@ONE_KIND
def test_a_fork_continues_as_its_parent_does(kind: str) -> None:
    engine = make_engine(kv_cache_dtype=kind, block_size=4)
    engine.add_request("parent", prompt_of(6), SEEDED)
    outputs = [output for _ in range(4) for output in engine.step()]
    engine.fork("parent", ["same", "other"], seeds=[11, 12])
    done = finished(outputs + engine.run())
    assert done["same"] == done["parent"] == solo(prompt_of(6), SEEDED, kind)
    assert done["other"] != done["parent"]


# -- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "bound"), [("bfloat16", 0.03), ("int8", 0.06), ("fp8", 0.25)])
def test_logprobs_are_close_to_those_of_float32(kind: str, bound: float) -> None:
    """Measured differences: 0.016, 0.037 and 0.156."""
    tokens = prompt_of(200)
    exact = make_engine().compute_logprobs([tokens])[0]
    found = make_engine(kv_cache_dtype=kind).compute_logprobs([tokens])[0]
    assert 0 < np.abs(found - exact).max() < bound


@ONE_KIND
def test_logprobs_do_not_depend_on_the_chunks(kind: str) -> None:
    tokens = prompt_of(100)
    whole, parts = (
        make_engine(kv_cache_dtype=kind, max_num_batched_tokens=budget).compute_logprobs([tokens])
        for budget in (512, 7)
    )
    assert np.abs(whole[0] - parts[0]).max() < 2e-3


@KINDS
def test_unused_pool_content_never_reaches_a_result(kind: str) -> None:
    engine = make_engine(kv_cache_dtype=kind, num_blocks=8)
    state, poison = engine._runner._state, {"int8": -128, "uint8": 0x7F, "bfloat16": jnp.nan}
    cache = jax.tree.map(lambda leaf: jnp.full_like(leaf, poison[str(leaf.dtype)]), state.cache)
    engine._runner._state = replace(state, cache=cache)
    engine.add_request("a", prompt_of(20), greedy(16))
    assert finished(engine.run())["a"] == solo(prompt_of(20), greedy(16), kind)
