"""The KV pool: arrays and bytes, copies of blocks, and sizes beyond 32-bit offsets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pagedjax import Engine, EngineConfig
from pagedjax.devices.mesh import make_mesh
from pagedjax.layers import attention
from pagedjax.layers.kv_cache import addressable_blocks, block_bytes, copy_blocks, make_cache
from pagedjax.schedule.plan import Plan
from tests.support.tiny_llama import make_engine, tiny

STORED = {"int8": "int8", "fp8": "uint8"}
KINDS = pytest.mark.parametrize("kind", STORED)


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
    """A block of 16 tokens in 30 layers with 3 KV heads of width 64."""
    config = replace(tiny("base")[0], num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64)
    assert block_bytes(config, 16, dtype) == 2 * 30 * 3 * 16 * per_vector


@pytest.mark.parametrize("kind", [*STORED, "float32"])
def test_a_copy_of_blocks_copies_every_array(kind: str) -> None:
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


# XLA on CPU would convert a pool of dtype fp8, so fp8 is the variant in the faster tiers.
@pytest.mark.parametrize("kind", ["fp8", pytest.param("int8", marks=pytest.mark.slow)])
def test_no_program_copies_or_converts_the_pool(kind: str) -> None:
    """The temporaries of the forward and copy programs do not grow with the pool."""
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
def test_an_explicit_size_between_2_31_and_2_32_elements_is_refused(num_blocks: int) -> None:
    """3000 elements per block: 2**31 / 3000 = 715,827.9 and 2**32 / 3000 = 1,431,655.8."""
    config = EngineConfig(num_blocks=num_blocks, kv_cache_dtype="fp8")
    with pytest.raises(ValueError, match=f"num_blocks={num_blocks}.*most 715827 or at.*1431656"):
        addressable_blocks(config, num_blocks, 3000)
    for fine in (715_827, 1_431_656):
        assert addressable_blocks(replace(config, num_blocks=fine), fine, 3000) == fine


def one_byte_engine(name: str, kind: str, num_blocks: int, monkeypatch: Any) -> Engine:
    """An engine with attention implementation `name` whose pool is never allocated."""
    monkeypatch.setattr(attention, "resolve", lambda *_: name)
    monkeypatch.setattr("pagedjax.step.pool.make_state", lambda *_: None)
    return make_engine(kv_cache_dtype=kind, num_blocks=num_blocks)


def test_only_pallas_kernels_on_one_byte_pools_refuse_such_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, _ = tiny("base")
    one = config.num_layers * config.num_kv_heads * 16 * config.head_dim
    many = 2**31 // one + 1
    for name, kind in (("xla", "int8"), ("pallas", "bfloat16")):
        assert one_byte_engine(name, kind, many, monkeypatch)._runner.num_blocks == many
    with pytest.raises(ValueError, match=f"num_blocks={many} .*'int8'"):
        one_byte_engine("pallas", "int8", many, monkeypatch)
