"""RoPE and the write to the KV pool, in place, in one kernel, in Pallas' Triton backend.

Program (token, kv head) processes the G queries, the key and the value of one kv head. XLA would
launch a rotation and two scatters, or four scatters for a one-byte pool with scales.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from pallas_kernels.formats import FORMATS, format_of
from pallas_kernels.pages import check_call, padded, scratch_spec, sum_of_parts

LEAST_NORMAL = 2.0**-6  # of float8_e4m3fn; subnormals are multiples of 2**-9


def rope_write(
    qkv: jax.Array,  # [A, S, K, G + 2, D] float32, to be summed over A; see `reference`
    cos: jax.Array,  # [S, D / 2] float32
    sin: jax.Array,  # [S, D / 2] float32
    pools: tuple[jax.Array, ...],  # k and v [L, N, K, T, D], then scales [L, N, K, T] if one-byte
    layer: jax.Array,  # scalar int32
    blocks: jax.Array,  # [S] int32
    offsets: jax.Array,  # [S] int32
    *,
    dtype: Any,
    interpret: bool = False,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:  # [S, K, G, D] in `dtype`, pools
    """See `reference.rope_write`; the pools are updated in place if they are donated.

    Raises ValueError for shapes that the kernel does not support.
    """
    tokens, kv_heads, heads, width = qkv.shape[1:]
    q: Any = jax.ShapeDtypeStruct((tokens, kv_heads, heads - 2, width), dtype)
    flat: Any = jax.ShapeDtypeStruct((tokens, kv_heads * (heads - 2), width), dtype)
    k_scales, v_scales = pools[2:] or (None, None)
    check_call(flat, pools[0], pools[1], k_scales, v_scales, None, None)
    inputs = [qkv, cos, sin, layer.reshape(1), blocks, offsets]
    run = pl.pallas_call(
        partial(_one_kv_head, stored=format_of(pools[0])),
        grid=(tokens, kv_heads),
        in_specs=[scratch_spec()] * (len(inputs) + len(pools)),
        out_specs=[scratch_spec()] * (1 + len(pools)),
        out_shape=[q, *(jax.ShapeDtypeStruct(each.shape, each.dtype) for each in pools)],
        input_output_aliases={len(inputs) + index: 1 + index for index in range(len(pools))},
        compiler_params=plt.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name="rope_write",
    )
    q, *written = run(*inputs, *pools)
    return q, tuple(written)


def _one_kv_head(
    qkv_ref: Any,
    cos_ref: Any,
    sin_ref: Any,
    layer_ref: Any,
    blocks_ref: Any,
    offsets_ref: Any,
    *refs: Any,
    stored: str | None,
) -> None:
    """Rotate and store the heads of one token and kv head; see the module docstring."""
    token, kv_head = pl.program_id(0), pl.program_id(1)
    group, width = qkv_ref.shape[3] - 2, qkv_ref.shape[4]
    q_ref, *pool_refs = refs[len(refs) // 2 :]  # pool inputs alias pool outputs
    half, wide = width // 2, lax.iota(jnp.int32, padded(width))
    real, is_low = wide < width, wide < half
    other = jnp.where(is_low, wide + half, wide - half)  # the other dimension of the rotated pair
    pair = jnp.where(is_low, wide, other)
    cos = plt.load(cos_ref.at[token, pair], mask=real, other=0.0)
    sin = plt.load(sin_ref.at[token, pair], mask=real, other=0.0)
    sin = jnp.where(is_low, -sin, sin)
    head = lax.iota(jnp.int32, padded(group))[:, None]
    inside = (head < group) & real[None]

    def load(head: jax.Array, at: jax.Array, mask: jax.Array) -> jax.Array:
        index = (token, kv_head, head, at)
        return sum_of_parts(qkv_ref, index, mask)

    q = load(head, wide[None], inside) * cos[None] + load(head, other[None], inside) * sin[None]
    plt.store(q_ref.at[token, kv_head, head, wide[None]], q.astype(q_ref.dtype), mask=inside)
    k_row, v_row = (jnp.full(wide.shape, group + index, jnp.int32) for index in (0, 1))
    k = load(k_row, wide, real) * cos + load(k_row, other, real) * sin
    v = load(v_row, wide, real)

    layer, block = layer_ref[0], plt.load(blocks_ref.at[token])
    offset = plt.load(offsets_ref.at[token])
    exists = block < pool_refs[0].shape[1]  # False for padding
    for index, values in enumerate((k, v)):
        values = values.astype(q_ref.dtype)
        if stored is not None:
            values, scale = _quantised(values.astype(jnp.float32), stored)
            at_scale = pool_refs[2 + index].at[layer, block, kv_head, offset]
            plt.store(at_scale, scale, mask=exists)
        at = pool_refs[index].at[layer, block, kv_head, offset, wide]
        plt.store(at, values.astype(pool_refs[index].dtype), mask=real & exists)


def _quantised(
    values: jax.Array,  # [D] float32
    name: str,
) -> tuple[jax.Array, jax.Array]:  # [D] stored, scalar scale
    """`formats.quantise` with operations that Triton has on every GPU: no `round`, no float8."""
    largest = FORMATS[name].largest
    scale = (jnp.abs(values).max() * jnp.float32(1 / largest)).astype(jnp.bfloat16)
    # A maximum on a GPU ignores NaN, but the scale of a vector with a NaN must be NaN.
    broken = jnp.where(values != values, 1.0, 0.0).max() > 0
    scale = jnp.where(broken, jnp.nan, scale).astype(jnp.bfloat16)
    scale_or_one = scale.astype(jnp.float32)
    scale_or_one = jnp.where(scale_or_one == 0, 1.0, scale_or_one)
    scaled = jnp.minimum(jnp.maximum(values / scale_or_one, -largest), largest)
    if name == "int8":
        return _rounded(scaled).astype(jnp.int8), scale
    size, bits = jnp.abs(scaled), lax.bitcast_convert_type(jnp.abs(scaled), jnp.int32)
    # Round the 23 fraction bits to 3, to nearest even, and change the exponent bias from 127 to 7.
    bits = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    bits = jnp.where(size < LEAST_NORMAL, _rounded(size * 2.0**9), bits)
    return (bits | jnp.where(scaled < 0, 0x80, 0)).astype(jnp.uint8), scale


def _rounded(values: jax.Array) -> jax.Array:
    """Round values of magnitude up to 2**22 to int32, to nearest even.

    The spacing of floats at 1.5 * 2**23 is one, so the addition rounds.
    """
    shifted = lax.bitcast_convert_type(values + 1.5 * 2.0**23, jnp.int32)
    return shifted - 0x4B400000  # 1.5 * 2**23
