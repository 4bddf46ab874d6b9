"""Programs of the attention and layer kernels, at serving sizes, to compile for GPUs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bench.serving.llama_step import POOL, TABLE_WIDTH, Program, bfloat16, int32
from pallas_kernels import (
    mosaic_decode,
    tiles,
    triton_add_norm,
    triton_decode,
    triton_prefill,
    triton_rope_write,
    xla_write,
)
from tests.support.kernel_cases import KV_HEADS, ONE_BYTE, KernelCase


def decode_op(paged_decode: Callable[..., Any], rows: int) -> Callable[[Mesh], Program]:
    """Write one key and value per row, then attend with one query per row."""

    def run(k_pool, v_pool, layer, blocks, offsets, k, v, q, tables, lens):
        k_pool = xla_write.write_kv(k_pool, layer, blocks, offsets, k)
        v_pool = xla_write.write_kv(v_pool, layer, blocks, offsets, v)
        out = paged_decode(q, k_pool, v_pool, layer, tables, lens, scale=128**-0.5)
        return k_pool, v_pool, out

    avals = (*_written(rows), bfloat16((rows, 32, 128)), int32((rows, TABLE_WIDTH)), int32((rows,)))
    return lambda _: Program(run, avals, donate=(0, 1))


def prefill_op(
    paged_prefill: Callable[..., Any], rows: int, tokens: int
) -> Callable[[Mesh], Program]:
    """Write the keys and values of `tokens` tokens in `rows` rows, then attend with the queries."""

    def run(k_pool, v_pool, layer, blocks, offsets, k, v, q, tables, lens, starts):
        k_pool = xla_write.write_kv(k_pool, layer, blocks, offsets, k)
        v_pool = xla_write.write_kv(v_pool, layer, blocks, offsets, v)
        pools = (k_pool, v_pool, layer)
        out = paged_prefill(q, *pools, tables, lens, starts, scale=128**-0.5)
        return k_pool, v_pool, out

    batch = (int32((rows, TABLE_WIDTH)), int32((rows,)), int32((rows + 1,)))
    avals = (*_written(tokens), bfloat16((tokens, 32, 128)), *batch)
    return lambda _: Program(run, avals, donate=(0, 1))


def _written(tokens: int) -> tuple[Any, ...]:
    values = bfloat16((tokens, 8, 128))
    return POOL, POOL, int32(()), int32((tokens,)), int32((tokens,)), values, values


def kernels_op(case: KernelCase) -> Callable[[Mesh], Program]:
    """The Triton attention kernels in one configuration, on a pool that needs 64-bit offsets.

    Rotation and write of each row precede its decode, as in a step.
    """
    stored = {"fp8": "uint8"}.get(case.pool, case.pool)
    layers, rows, tokens, table = 32, 16, 256, 4096 // case.size
    blocks = 2**33 // (layers * KV_HEADS * case.size * case.width)
    pool = jax.ShapeDtypeStruct((layers, blocks, KV_HEADS, case.size, case.width), stored)
    scales = jax.ShapeDtypeStruct(pool.shape[:-1], jnp.bfloat16)
    pools = [pool, pool, *([scales] * 2 if case.pool in ONE_BYTE else [])]

    def build(mesh: Mesh) -> Program:
        device = tiles.device_of(mesh.devices.flat[0])

        def run(pools, layer, qkv, cos, sin, blocks, offsets, prefill_q, tables, lens, starts):
            decode_q, pools = triton_rope_write.rope_write(
                qkv, cos, sin, pools, layer, blocks, offsets, dtype=case.dtype
            )
            pair = dict(zip(("k_scales", "v_scales"), pools[2:], strict=False))
            read = (*pools[:2], layer, tables, lens)
            one = triton_decode.paged_decode(
                decode_q.reshape(rows, -1, case.width), *read, **pair, **case.options,
                tiles=case.tiles(device), device=device,
                fixed_split_tokens=case.decode_options()["fixed_split_tokens"],
            )  # fmt: skip
            return (
                pools,
                one,
                triton_prefill.paged_prefill(
                    prefill_q, *read, starts, **pair, **case.options, device=device
                ),
            )

        shapes = [(4, rows, KV_HEADS, case.group + 2, case.width), *[(rows, case.width // 2)] * 2]
        floats = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        prefill_q = jax.ShapeDtypeStruct((tokens, KV_HEADS * case.group, case.width), case.dtype)
        written, *batch = (int32(shape) for shape in ((rows,), (rows, table), (rows,), (rows + 1,)))
        avals = (tuple(pools), int32(()), *floats, written, written, prefill_q, *batch)
        return Program(run, avals, donate=0)

    return build


def add_norms(_: Mesh) -> Program:
    """`add_norm` at several hidden sizes and in both of its output data types."""
    shapes = [(576, jnp.float32), (4096, jnp.float32), (5120, jnp.bfloat16), (16384, jnp.bfloat16)]

    def run(*each):
        return [triton_add_norm.add_norm(*given, 1e-5) for given in each]

    float32 = partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    return Program(run, tuple(
        (float32((16, width)), float32((8, 16, width)), jax.ShapeDtypeStruct((width,), dtype))
        for width, dtype in shapes
    ))  # fmt: skip


def mosaic_op(_: Mesh) -> Program:
    """The Mosaic kernel at the shapes of `decode_op`."""
    run = partial(mosaic_decode.paged_decode, scale=128**-0.5)
    rows = (bfloat16((32, 32, 128)), POOL, POOL, int32(()), int32((32, TABLE_WIDTH)), int32((32,)))
    return Program(run, rows)
