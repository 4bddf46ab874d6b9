"""Building blocks of a transformer layer: products and sums in float32, storage in the weights'
data type."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pagedjax.config import RopeScaling
from pagedjax.host_cpu import instruction_sets


def rms_norm(
    x: jax.Array,  # [S, E] float32
    weight: jax.Array,  # [E]
    eps: float,
) -> jax.Array:  # [S, E] in the weight's dtype
    """Root mean square norm (arXiv 1910.07467), computed in float32."""
    x = x.astype(jnp.float32)
    scaled = x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
    return (scaled * weight.astype(jnp.float32)[None]).astype(weight.dtype)


def linear(
    x: jax.Array,  # [S, *in]
    weight: jax.Array,  # [*out, *in]
    bias: jax.Array | None = None,  # [*out]
    *,
    same_for_all_rows: bool = False,
) -> jax.Array:  # [S, *out] float32
    """Product with a weight stored `[out, in]`, accumulated and returned in float32.

    same_for_all_rows: not to choose, on CPU, another form of the product for few rows, which is
    faster and rounds otherwise.

    Axes that are not the outermost, such as F of `gate_up [2, F, E]`, may be divided over devices,
    so the weight keeps its axes. XLA on CPU would then transpose and copy it at every step: there
    it is viewed as a matrix.
    """
    flat = partial(_flat_product, same_for_all_rows=same_for_all_rows)
    y = lax.platform_dependent(x.astype(weight.dtype), weight, cpu=flat, default=_product)
    return y if bias is None else y + bias.astype(jnp.float32)[None]


def _product(x: jax.Array, weight: jax.Array) -> jax.Array:
    inputs = x.ndim - 1
    ours, theirs = range(1, x.ndim), range(weight.ndim - inputs, weight.ndim)
    contracted = ((tuple(ours), tuple(theirs)), ((), ()))
    return lax.dot_general(
        x,
        weight,
        contracted,
        preferred_element_type=jnp.float32,
        # Without it a GPU rounds float32 operands to TF32, at an error of 3e-4.
        precision=lax.Precision.HIGHEST if weight.dtype == jnp.float32 else None,
    )


def _flat_product(x: jax.Array, weight: jax.Array, same_for_all_rows: bool) -> jax.Array:
    out_shape = weight.shape[: weight.ndim - x.ndim + 1]
    flat = x.reshape(x.shape[0], -1)
    matrix = weight.reshape(math.prod(out_shape), flat.shape[1])
    if not same_for_all_rows and _weights_go_left(x.shape[0], weight.dtype, instruction_sets()):
        # Without the barrier XLA would turn the transposed product back.
        y = lax.optimization_barrier(_product(matrix, flat)).T
    else:
        y = _product(flat, matrix)
    return y.reshape(x.shape[0], *out_shape)


def _weights_go_left(rows: int, dtype: jnp.dtype, instruction_sets: frozenset[str]) -> bool:
    """Where XLA's product on CPU is faster with the weights as its left side.

    It repacks its right side, which few rows do not pay for: measured, float32 takes 0.5 to 0.8
    of the time up to 64 rows, bfloat16 0.85 to 1 from 16 to 32 and more outside; without AVX-512
    bfloat16 takes 0.8 to 1 from 8 to 48.
    """
    if dtype == jnp.float32:
        return rows <= 64
    if "avx2" in instruction_sets and "avx512f" not in instruction_sets:
        return 8 <= rows <= 48
    return 16 <= rows <= 32


def swiglu(
    gate_up: jax.Array,  # [S, 2, F] float32
) -> jax.Array:  # [S, F] float32
    """silu(gate) * up (arXiv 2002.05202)."""
    return jax.nn.silu(gate_up[:, 0]) * gate_up[:, 1]


def rope_frequencies(rope: RopeScaling, head_dim: int) -> np.ndarray:  # [D / 2] float32
    """Radians per position of each pair of dimensions, after the scaling of `rope`.

    `llama3` (arXiv 2407.21783 and its released weights): wavelengths shorter than
    original / high_freq_factor stay, those longer than original / low_freq_factor are divided by
    `factor`, and between them the two are blended linearly in original / wavelength.
    """
    plain = rope.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.rope_type == "default":
        return plain.astype(np.float32)
    turns = rope.original_max_position_embeddings * plain / (2 * math.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = np.clip(blend, 0, 1)
    return (plain * (blend + (1 - blend) / rope.factor)).astype(np.float32)


def rope_tables(
    positions: jax.Array,  # [S]
    frequencies: np.ndarray,  # [D / 2]
) -> tuple[jax.Array, jax.Array]:  # cos, sin [S, D / 2] float32
    """Angles in float32 whatever the model's dtype: bfloat16 cannot tell position 256 from 257."""
    angles = positions.astype(jnp.float32)[:, None] * jnp.asarray(frequencies, jnp.float32)[None]
    return jnp.cos(angles), jnp.sin(angles)


def apply_rope(
    x: jax.Array,  # [S, heads, D] float32
    cos: jax.Array,  # [S, D / 2]
    sin: jax.Array,  # [S, D / 2]
) -> jax.Array:  # [S, heads, D] float32
    """Rotate the pairs (i, i + D/2) of every head (arXiv 2104.09864, halves as in GPT-NeoX)."""
    low, high = jnp.split(x, 2, axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
