"""Shared parts of the Triton kernels: loads of keys and values through a block table, products.

Each token is looked up in the block table separately, so the number of tokens that a kernel loads
at once does not depend on the page size. All indices are arrays, since Pallas' interpreter does
not support masked loads that mix arrays and slices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from pallas_kernels.formats import format_of

NEGATIVE = -1e30  # finite, so that exp2(NEGATIVE - NEGATIVE) is not NaN
LOG2_E = math.log2(math.e)
WIDTHS = (8, 256)  # D
BLOCK_SIZES = (8, 256)  # T
# float8_e4m3fn has 4 exponent bits with bias 7, float16 has 5 with bias 15.
FP8_IN_FLOAT16 = 2.0**8


class Block(NamedTuple):
    """Keys and values of some tokens; zeros for tokens that must not be read."""

    k: jax.Array  # [tokens, D]
    v: jax.Array  # [tokens, D]
    k_scales: jax.Array | None  # [tokens]
    v_scales: jax.Array | None  # [tokens]


def compute_dtype(q: jax.Array, pool: jax.Array) -> Any:
    """The dtype of the products' operands: float32 if queries and a float pool differ."""
    return q.dtype if format_of(pool) or q.dtype == pool.dtype else jnp.dtype(jnp.float32)


@dataclass(frozen=True)
class KeyValues:
    """The static parameters of a kernel that describe its keys and values."""

    size: int  # T
    width: int  # D
    scale: float
    window: int | None
    soft_cap: float | None
    quantised: bool
    dtype: Any  # of the products' operands

    def load(
        self,
        refs: tuple[Any, ...],  # block tables, k pool, v pool, then both scales if quantised
        layer: jax.Array,
        row: jax.Array,
        kv_head: jax.Array,
        keys: jax.Array,  # [tokens] positions
        seen: jax.Array,  # [tokens] bool; the others are not read
    ) -> Block:
        """Load the keys and values at these positions of one row."""
        tables, k_ref, v_ref, *scale_refs = refs
        page = plt.load(tables.at[row, keys // self.size], mask=seen, other=0)
        offset = keys % self.size
        wide = lanes_of(self.width)
        at = (layer, page[:, None], kv_head, offset[:, None], wide[None])
        mask = seen[:, None] & (wide < self.width)[None]
        k, v = (plt.load(ref.at[at], mask=mask, other=_zero(ref)) for ref in (k_ref, v_ref))
        if not self.quantised:
            return Block(k.astype(self.dtype), v.astype(self.dtype), None, None)
        k_scales, v_scales = (
            plt.load(ref.at[layer, page, kv_head, offset], mask=seen, other=_zero(ref))
            for ref in scale_refs
        )
        more = FP8_IN_FLOAT16 if k.dtype == jnp.uint8 else 1.0
        # Weights times scales may exceed float16's range; bfloat16 holds both formats exactly.
        v_dtype = jnp.float32 if jnp.dtype(self.dtype).itemsize == 4 else jnp.bfloat16
        return Block(
            _without_scale(k, self.dtype),
            _without_scale(v, v_dtype),
            k_scales.astype(jnp.float32) * more,
            v_scales.astype(jnp.float32) * more,
        )


def log2_scores(problem: KeyValues, q: jax.Array, block: Block) -> jax.Array:
    """Scaled and capped scores [M, tokens] in float32, times log2(e)."""
    scores = product(q, block.k, transpose=True)
    if block.k_scales is not None:
        scores = scores * block.k_scales[None]
    if problem.soft_cap is None:
        return scores * (problem.scale * LOG2_E)
    return jnp.tanh(scores * (problem.scale / problem.soft_cap)) * (problem.soft_cap * LOG2_E)


def weighted_values(weights: jax.Array, block: Block) -> jax.Array:
    """Weights [M, tokens] times values, [M, D] in float32."""
    if block.v_scales is not None:
        weights = weights * block.v_scales[None]
    return product(weights.astype(block.v.dtype), block.v, transpose=False)


def product(left: jax.Array, right: jax.Array, *, transpose: bool) -> jax.Array:
    """A product accumulated in float32; float32 operands are never rounded to TF32."""
    exact = left.dtype == jnp.float32
    return plt.dot(
        left,
        right.T if transpose else right,
        precision=lax.Precision.HIGHEST if exact else None,
    )


def _without_scale(stored: jax.Array, dtype: Any) -> jax.Array:
    """Decode stored bytes exactly, without the scale; fp8 is divided by `FP8_IN_FLOAT16`.

    fp8 is converted to float16 by shifting its bits, which works on every GPU.
    """
    if stored.dtype == jnp.int8:
        return stored.astype(dtype)
    bits = stored.astype(jnp.uint16)
    bits = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
    return lax.bitcast_convert_type(bits, jnp.float16).astype(dtype)


def _zero(ref: Any) -> Any:
    return jnp.zeros((), ref.dtype)


def lanes_of(width: int) -> jax.Array:
    """Indices along an axis of a product's operand, whose size must be a power of two >= 16.

    The caller masks those past `width`.
    """
    return lax.iota(jnp.int32, max(16, padded(width)))


def padded(length: int) -> int:
    """The next power of two, since Triton's block sizes are powers of two."""
    return pl.next_power_of_2(length)


def scratch_spec() -> pl.BlockSpec:
    """BlockSpec of a whole array in global memory that the kernel indexes itself."""
    return pl.BlockSpec(memory_space=pl.ANY)


def sum_of_parts(ref: Any, index: tuple[Any, ...], mask: jax.Array) -> jax.Array:
    """Sum `ref[:, *index]`, in order, over the first axis, which holds parts of a product."""
    parts = [plt.load(ref.at[part, *index], mask=mask, other=0.0) for part in range(ref.shape[0])]
    return sum(parts[1:], parts[0])


def check_call(
    q: jax.Array,  # [.., H, D]
    k_pool: jax.Array,
    v_pool: jax.Array,
    k_scales: jax.Array | None,
    v_scales: jax.Array | None,
    window: int | None,
    soft_cap: float | None,
) -> None:
    """Raise ValueError for arguments that the Triton kernels do not support."""
    heads, width = q.shape[-2:]
    kv_heads, size, pool_width = k_pool.shape[2:]
    if k_pool.shape != v_pool.shape or k_pool.dtype != v_pool.dtype:
        raise ValueError(
            f"the key pool is {k_pool.dtype}{k_pool.shape}, the value pool "
            f"{v_pool.dtype}{v_pool.shape}; they must be equal"
        )
    if pool_width != width or heads % kv_heads:
        raise ValueError(
            f"{heads} query heads of width {width} do not match {kv_heads} kv heads of width "
            f"{pool_width}"
        )
    if width % 8 or not WIDTHS[0] <= width <= WIDTHS[1]:
        raise ValueError(f"head_dim={width}; supported: multiples of 8 from 8 to 256")
    if size & (size - 1) or not BLOCK_SIZES[0] <= size <= BLOCK_SIZES[1]:
        raise ValueError(f"block_size={size}; supported: powers of two from 8 to 256")
    if window is not None and window < 1:
        raise ValueError(f"window={window}; supported: 1 or more, or None")
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"soft_cap={soft_cap}; supported: positive numbers, or None")
    _check_format(k_pool, k_scales, v_scales)


def _check_format(pool: jax.Array, k_scales: jax.Array | None, v_scales: jax.Array | None) -> None:
    name = format_of(pool)
    for scales in (k_scales, v_scales):
        shape = None if scales is None else scales.shape
        if shape != (pool.shape[:-1] if name else None):
            raise ValueError(
                f"scales of shape {shape} for a pool of {pool.dtype}{pool.shape}; int8 and uint8 "
                "pools need one scale per vector, others none"
            )
    elements = math.prod(pool.shape)
    if name and 2**31 < elements <= 2**32:
        # The lowering uses signed 32-bit offsets for such a pool, which overflow.
        raise ValueError(
            f"a pool of {elements} one-byte elements; supported: up to 2**31, or more than 2**32"
        )
