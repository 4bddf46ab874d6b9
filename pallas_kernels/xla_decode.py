"""Decode attention in plain XLA: one query per row."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.xla_walk import (
    Attend,
    Keys,
    pages_per_group,
    per_platform,
    put_rows,
    slice_rows,
    walk,
    whole_groups,
)

ROWS_AT_ONCE = 16


def paged_decode(
    q: jax.Array,  # [B, H, D]
    k_pool: jax.Array,  # [L, N, K, T, D]
    v_pool: jax.Array,  # [L, N, K, T, D]
    layer: jax.Array,  # scalar
    block_tables: jax.Array,  # [B, P]
    context_lens: jax.Array,  # [B]
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    k_scales: jax.Array | None = None,  # [L, N, K, T]
    v_scales: jax.Array | None = None,  # [L, N, K, T]
) -> jax.Array:  # [B, H, D]
    """One query per row, at the last position of its context; rows of length 0 return zeros.

    The options are those of `reference.paged_prefill`.
    """
    rows, heads, width = q.shape
    kv_heads = k_pool.shape[2]
    pages = pages_per_group(k_pool)
    attend = partial(walk, pages=pages, scale=scale, window=window, soft_cap=soft_cap)
    out = per_platform(
        _in_batches,
        attend,
        q.reshape(rows, kv_heads, heads // kv_heads, width),
        whole_groups(block_tables, k_pool, pages),
        context_lens,
        Keys(k_pool, v_pool, layer, k_scales, v_scales),
    )
    return out.reshape(q.shape).astype(q.dtype)


def _in_batches(
    attend: Attend,
    q: jax.Array,  # [B, K, G, D]
    tables: jax.Array,  # [B, P]
    context_lens: jax.Array,  # [B]
    keys: Keys,
) -> jax.Array:  # [B, K, G, D] float32
    """Run `attend` on ROWS_AT_ONCE rows at a time, each batch up to its own longest context.

    Small batches keep the gathered pages in the CPU's cache and waste less work on short rows.
    """
    rows = q.shape[0]

    def some(q: jax.Array, tables: jax.Array, lens: jax.Array) -> jax.Array:
        return attend(q, keys, tables, lens[:, None] - 1, lens)

    if rows <= ROWS_AT_ONCE:
        return some(q, tables, context_lens)
    batches = -(-rows // ROWS_AT_ONCE)
    arrays = [
        jnp.pad(each, [(0, -rows % ROWS_AT_ONCE)] + [(0, 0)] * (each.ndim - 1))
        for each in (q, tables, context_lens)
    ]

    def one_batch(index: jax.Array, out: jax.Array) -> jax.Array:
        first = index * ROWS_AT_ONCE
        return put_rows(
            out, some(*(slice_rows(each, first, ROWS_AT_ONCE) for each in arrays)), first
        )

    out = jnp.zeros(arrays[0].shape, jnp.float32)
    return lax.fori_loop(0, batches, one_batch, out)[:rows]
