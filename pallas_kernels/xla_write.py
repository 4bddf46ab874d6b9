"""Writes of keys and values to the KV pool, in plain XLA."""

from __future__ import annotations

import jax

from pallas_kernels.formats import format_of, quantise


def write_kv(
    pool: jax.Array,  # [L, N, K, T, D], or scales without D
    layer: jax.Array,  # scalar
    blocks: jax.Array,  # [S]
    offsets: jax.Array,  # [S]
    values: jax.Array,  # [S, K, D], or [S, K]
) -> jax.Array:  # as pool
    """Write the values at (layer, block, :, offset); blocks outside [0, N) are dropped."""
    at = pool.at[layer, blocks, :, offsets]
    return at.set(values.astype(pool.dtype), mode="drop", wrap_negative_indices=False)


def write_quantised(
    pool: jax.Array,  # [L, N, K, T, D] int8 or uint8
    scales: jax.Array,  # [L, N, K, T] bfloat16
    layer: jax.Array,  # scalar
    blocks: jax.Array,  # [S]
    offsets: jax.Array,  # [S]
    values: jax.Array,  # [S, K, D]
) -> tuple[jax.Array, jax.Array]:
    """Quantise the values to the pool's one-byte format and write them and their scales."""
    stored, new = quantise(values, str(format_of(pool)))
    at = (layer, blocks, offsets)
    return write_kv(pool, *at, stored), write_kv(scales, *at, new)
