"""One-byte KV pools through the engine, and which attention runs on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pagedjax import Engine, EngineConfig, SamplingParams
from pagedjax.devices.mesh import make_mesh
from pagedjax.layers import attention
from pagedjax.layers.attention import resolve
from pagedjax.layers.kv_cache import addressable_blocks, block_bytes, copy_blocks, make_cache
from pagedjax.schedule.plan import Plan
from tests.support.tiny_llama import finished, make_engine, tiny

SEEDED = SamplingParams(temperature=1.0, seed=11, max_tokens=12, ignore_eos=True)
STORED = {"int8": "int8", "fp8": "uint8"}
KINDS = pytest.mark.parametrize("kind", STORED)
# Where the kinds differ in nothing but the element: one is quick, both are in `make test-all`.
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
def test_a_small_pool_and_small_chunks_change_speed_and_never_tokens(kind: str) -> None:
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
    """Six tokens in blocks of 4: the second block is copied for all samples but one."""
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
def test_a_fork_goes_on_as_its_parent_does(kind: str) -> None:
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
    """Measured: 0.016, 0.037 and 0.156."""
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


# -- the pool -------------------------------------------------------------------------------------


@KINDS
def test_a_pool_holds_bytes_and_their_scales(kind: str) -> None:
    config, _ = tiny("base")
    cache = make_engine(kv_cache_dtype=kind, num_blocks=10, block_size=8)._runner._state.cache
    shape = (config.num_layers, 10, config.num_kv_heads, 8, config.head_dim)
    for pool, scales in ((cache.k, cache.k_scales), (cache.v, cache.v_scales)):
        assert scales is not None
        assert (pool.shape, str(pool.dtype)) == (shape, STORED[kind])
        assert (scales.shape, str(scales.dtype)) == (shape[:-1], "bfloat16")
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(cache)) == 10 * block_bytes(config, 8, kind)


@pytest.mark.parametrize(
    ("dtype", "per_vector"),
    [("float32", 4 * 64), ("bfloat16", 2 * 64), ("int8", 64 + 2), ("fp8", 64 + 2)],
)
def test_the_bytes_of_a_block(dtype: str, per_vector: int) -> None:
    """Of 30 layers with 3 kv heads of 64: keys and values of 16 tokens."""
    config = replace(tiny("base")[0], num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64)
    assert block_bytes(config, 16, dtype) == 2 * 30 * 3 * 16 * per_vector


@pytest.mark.parametrize("kind", [*STORED, "float32"])
def test_a_copy_of_blocks_takes_everything_of_theirs(kind: str) -> None:
    cache = make_cache(tiny("base")[0], 6, 4, kind, make_mesh())

    def numbered(leaf: jax.Array) -> jax.Array:
        shape = (1, 6, *[1] * (leaf.ndim - 2))
        return leaf + jnp.arange(6).astype(leaf.dtype).reshape(shape)

    cache = jax.tree.map(numbered, cache)
    copied = jax.jit(copy_blocks)(cache, jnp.array([1, 5, 6]), jnp.array([2, 0, 6]))
    leaves = jax.tree.leaves(copied)
    assert len(leaves) == (2 if kind == "float32" else 4)
    for leaf in leaves:
        blocks = np.asarray(leaf).swapaxes(0, 1).reshape(6, -1)
        np.testing.assert_array_equal(blocks, np.full_like(blocks.T, [5, 1, 1, 3, 4, 5]).T)


# fp8 is the one that XLA on CPU would convert.
@pytest.mark.parametrize("kind", ["fp8", pytest.param("int8", marks=pytest.mark.slow)])
def test_no_program_copies_or_converts_the_pool(kind: str) -> None:
    """The temporaries of a forward and of a copy do not grow with the pool."""
    temporaries = []
    for num_blocks in (64, 8192):
        engine = make_engine(
            kv_cache_dtype=kind, num_blocks=num_blocks, max_num_seqs=4, max_num_batched_tokens=64
        )
        runner = engine._runner
        batch = runner._packer.pack(Plan([], []), runner.buckets.shapes()[-1])
        forward = runner._programs._forward.lower(engine.params, runner._state, batch).compile()
        copies = runner._packer.copies(Plan([], [], [(0, 1)]))
        copy = runner._programs._copy.lower(runner._state.cache, *copies).compile()
        pool_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(runner._state.cache))
        found = [each.memory_analysis() for each in (forward, copy)]
        assert all(each.alias_size_in_bytes >= pool_bytes for each in found)
        temporaries.append([each.temp_size_in_bytes for each in found])
    assert temporaries[0] == temporaries[1]


# -- 32-bit offsets -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fitting", "chosen"),
    [(1, 1), (2**20, 2**20), (2**20 + 1, 2**20), (2**21, 2**20), (2**21 + 1, 2**21 + 1)],
)
def test_a_pool_between_2_31_and_2_32_elements_is_made_smaller(fitting: int, chosen: int) -> None:
    assert addressable_blocks(EngineConfig(), fitting, 2**11) == chosen


@pytest.mark.parametrize("num_blocks", [715_828, 1_431_655])
def test_such_a_pool_is_refused_when_it_was_asked_for(num_blocks: int) -> None:
    """3000 elements a block: 2**31 / 3000 = 715,827.9 and 2**32 / 3000 = 1,431,655.8."""
    config = EngineConfig(num_blocks=num_blocks, kv_cache_dtype="fp8")
    with pytest.raises(ValueError, match=f"num_blocks={num_blocks}.*most 715827 or at.*1431656"):
        addressable_blocks(config, num_blocks, 3000)
    for fine in (715_827, 1_431_656):
        assert addressable_blocks(replace(config, num_blocks=fine), fine, 3000) == fine


def one_byte_engine(name: str, kind: str, num_blocks: int, monkeypatch: Any) -> Engine:
    """An engine whose implementation is called `name`, and whose pool is never made."""
    monkeypatch.setattr(attention, "resolve", lambda *_: name)
    monkeypatch.setattr("pagedjax.step.runner.make_state", lambda *_: None)
    return make_engine(kv_cache_dtype=kind, num_blocks=num_blocks)


def test_only_pallas_kernels_over_bytes_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = tiny("base")
    one = config.num_layers * config.num_kv_heads * 16 * config.head_dim
    many = 2**31 // one + 1
    for name, kind in (("xla", "int8"), ("pallas", "bfloat16")):
        assert one_byte_engine(name, kind, many, monkeypatch)._runner.num_blocks == many
    with pytest.raises(ValueError, match=f"num_blocks={many} .*'int8'"):
        one_byte_engine("pallas", "int8", many, monkeypatch)


# -- which attention runs -------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    platform: str
    device_kind: str
    compute_capability: str = ""


CPU = Device("cpu", "cpu")
A100, H200 = Device("gpu", "NVIDIA A100", "8.0"), Device("cuda", "NVIDIA H200", "9.0")
V100, MI300 = Device("gpu", "Tesla V100", "7.0"), Device("gpu", "AMD Instinct", "gfx942")
B200 = Device("gpu", "NVIDIA B200", "10.0")


@pytest.mark.parametrize(
    ("name", "device", "block_size", "dtype", "runs"),
    [("auto", CPU, 16, "int8", "xla"), ("auto", A100, 16, "fp8", "pallas"),
     ("auto", B200, 8, "float32", "pallas"), ("auto", H200, 256, "bfloat16", "pallas"),
     ("auto", V100, 16, "float16", "xla"), ("auto", MI300, 16, "float16", "xla"),
     ("auto", A100, 4, "int8", "xla"), ("auto", A100, 24, "int8", "xla"),
     ("auto", A100, 512, "int8", "xla"), ("xla", CPU, 3, "int8", "xla"),
     ("xla", H200, 16, "fp8", "xla"), ("pallas", A100, 16, "fp8", "pallas"),
     ("pallas_interpret", CPU, 8, "fp8", "pallas_interpret"),
     ("pallas_mosaic", H200, 64, "bfloat16", "pallas_mosaic")],
)  # fmt: skip
def test_what_runs(name: str, device: Any, block_size: int, dtype: str, runs: str) -> None:
    assert resolve(name, device, block_size, dtype, head_dim=64) == runs


@pytest.mark.parametrize(
    ("name", "device", "block_size", "dtype", "message"),
    [("pallas", CPU, 16, "int8", r"'pallas' needs an NVIDIA GPU.* 8\.0.*'cpu' \(cpu\).*'xla'"),
     ("pallas", V100, 16, "int8", r"needs an NVIDIA GPU.*'Tesla V100' \(gpu\) of .* 7\.0.*'xla'"),
     ("pallas", MI300, 16, "int8", r"needs an NVIDIA GPU.*'AMD Instinct'"),
     ("pallas", A100, 4, "int8", "power of two from 8 to 256, and not 4;.*'xla'"),
     ("pallas", A100, 24, "int8", "not 24"), ("pallas", A100, 512, "int8", "not 512"),
     ("pallas_interpret", CPU, 12, "int8", "'pallas_interpret' needs a block_size.*not 12"),
     ("pallas_mosaic", A100, 16, "bfloat16", r"needs a Hopper GPU.*A100.* 8\.0.*'auto'"),
     ("pallas_mosaic", B200, 16, "bfloat16", r"Hopper.*10\.0"),
     ("pallas_mosaic", H200, 16, "fp8", "needs kv_cache_dtype='bfloat16' or.*'fp8'.*'auto'"),
     ("pallas_mosaic", H200, 16, "float32", "the pool's is 'float32'")],
)  # fmt: skip
def test_what_cannot_run_says_why(
    name: str, device: Any, block_size: int, dtype: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(name, device, block_size, dtype, head_dim=64)
