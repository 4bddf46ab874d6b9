"""Naive baseline in XLA: gather the pages of every row, then attend to the dense array.

It moves keys and values three times: out of the pool, into the gathered array and out of it. Its
temporaries grow with rows times the longest context.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.formats import decode, format_of


def paged_decode(
    q: jax.Array,  # [B, H, D]
    k_pool: jax.Array,  # [L, N, K, T, D]
    v_pool: jax.Array,  # [L, N, K, T, D]
    layer: jax.Array,  # scalar
    block_tables: jax.Array,  # [B, P]
    context_lens: jax.Array,  # [B]
    *,
    scale: float,
    k_scales: jax.Array | None = None,  # [L, N, K, T]
    v_scales: jax.Array | None = None,  # [L, N, K, T]
) -> jax.Array:  # [B, H, D]
    """See `reference.paged_decode`."""
    return _attend(
        q[:, None], context_lens[:, None] - 1, k_pool, v_pool, layer, block_tables, context_lens,
        scale, k_scales, v_scales,
    )[:, 0]  # fmt: skip


def paged_prefill(
    q: jax.Array,  # [S, H, D]
    k_pool: jax.Array,  # [L, N, K, T, D]
    v_pool: jax.Array,  # [L, N, K, T, D]
    layer: jax.Array,  # scalar
    block_tables: jax.Array,  # [B, P]
    context_lens: jax.Array,  # [B]
    query_starts: jax.Array,  # [B + 1]
    *,
    most_queries: int,
    scale: float,
    k_scales: jax.Array | None = None,  # [L, N, K, T]
    v_scales: jax.Array | None = None,  # [L, N, K, T]
) -> jax.Array:  # [S, H, D]
    """See `reference.paged_prefill`. All rows are padded to `most_queries` queries."""
    lanes = jnp.arange(most_queries, dtype=jnp.int32)[None]
    index = query_starts[:-1, None] + lanes  # [B, most_queries]
    counts = (query_starts[1:] - query_starts[:-1])[:, None]
    positions = jnp.where(lanes < counts, context_lens[:, None] - counts + lanes, -1)
    out = _attend(
        jnp.take(q, index, axis=0, mode="clip"), positions, k_pool, v_pool, layer, block_tables,
        context_lens, scale, k_scales, v_scales,
    )  # fmt: skip
    index = jnp.where(lanes < counts, index, q.shape[0])
    return jnp.zeros_like(q).at[index].set(out, mode="drop")


def _attend(
    q: jax.Array,  # [B, M, H, D]
    positions: jax.Array,  # [B, M]
    k_pool: jax.Array,
    v_pool: jax.Array,
    layer: jax.Array,
    tables: jax.Array,  # [B, P]
    context_lens: jax.Array,  # [B]
    scale: float,
    k_scales: jax.Array | None,
    v_scales: jax.Array | None,
) -> jax.Array:  # [B, M, H, D]
    k, v = (_gathered(pool, layer, tables, q.dtype) for pool in (k_pool, v_pool))
    rows, kv_heads, keys, width = k.shape
    queries = q.shape[1]
    grouped = q.reshape(rows, queries, kv_heads, -1, width).transpose(0, 2, 3, 1, 4)
    group = grouped.shape[2]
    scores = _product("bmd,bsd->bms", grouped.reshape(rows, kv_heads, -1, width), k) * scale
    scores = scores.reshape(rows, kv_heads, group, queries, keys)
    if k_scales is not None:
        scores = scores * _gathered_scales(k_scales, layer, tables)
    key = jnp.arange(keys, dtype=jnp.int32)
    known = key[None] < context_lens[:, None]  # [B, keys]
    seen = known[:, None] & (key[None, None] <= positions[:, :, None])  # [B, M, keys]
    seen = seen[:, None, None]
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1)
    if v_scales is not None:
        weights = weights * _gathered_scales(v_scales, layer, tables)
    weights = jnp.where(seen, weights, 0).reshape(rows, kv_heads, -1, keys)
    v = jnp.where(known[:, None, :, None], v, 0)
    out = _product("bms,bsd->bmd", weights.astype(v.dtype), v)
    out = out.reshape(rows, kv_heads, group, queries, width).transpose(0, 3, 1, 2, 4)
    return out.reshape(q.shape).astype(q.dtype)


def _product(
    formula: str, left: jax.Array, right: jax.Array
) -> jax.Array:  # [B, K, rows of left, columns]
    """Multiply two [B, K, ...] arrays with B and K merged into one axis.

    XLA on CPU supports bfloat16 products with float32 results only with one batch axis.
    """
    rows, kv_heads = left.shape[:2]
    flat = (each.reshape(rows * kv_heads, *each.shape[2:]) for each in (left, right))
    out = jnp.einsum(formula, *flat, preferred_element_type=jnp.float32)
    return out.reshape(rows, kv_heads, *out.shape[1:])


def _gathered(
    pool: jax.Array, layer: jax.Array, tables: jax.Array, dtype: jnp.dtype
) -> jax.Array:  # [B, K, P * T, D]
    found = pool[layer, tables]  # [B, P, K, T, D]
    if format_of(pool) is not None:
        found = decode(found, dtype)
    rows, pages, kv_heads, size, width = found.shape
    return found.transpose(0, 2, 1, 3, 4).reshape(rows, kv_heads, pages * size, width)


def _gathered_scales(
    scales: jax.Array, layer: jax.Array, tables: jax.Array
) -> jax.Array:  # [B, K, 1, 1, P * T] float32
    found = scales[layer, tables].astype(jnp.float32)  # [B, P, K, T]
    rows, pages, kv_heads, size = found.shape
    return found.transpose(0, 2, 1, 3).reshape(rows, kv_heads, 1, 1, pages * size)
