"""The specification of each operation: a naive float32 implementation with loops over queries."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

FLOAT8 = jnp.dtype("float8_e4m3fn")


def paged_prefill(
    q: np.ndarray,  # [S, H, D]
    k_pool: np.ndarray,  # [L, N, K, T, D]
    v_pool: np.ndarray,  # [L, N, K, T, D]
    layer: int,
    block_tables: np.ndarray,  # [B, P]
    context_lens: np.ndarray,  # [B]
    query_starts: np.ndarray,  # [B + 1]
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    k_scales: np.ndarray | None = None,  # [L, N, K, T]
    v_scales: np.ndarray | None = None,  # [L, N, K, T]
) -> np.ndarray:  # [S, H, D] float32
    """Causal attention of ragged queries over paged keys.

    Row b has the queries [query_starts[b], query_starts[b+1]), which are the last positions of
    its context; context_lens[b] counts the keys in the pool, including those of the queries. Query
    head h reads kv head h // G. Queries of no row and queries without keys return zeros.

    window: a query attends to its own key and the window - 1 before it; None: to all of them.
    soft_cap: scores become soft_cap * tanh(score / soft_cap) (arXiv 2408.00118).
    k_scales, v_scales: scales of a pool in a one-byte format, see `formats`.
    """
    size = k_pool.shape[3]
    group = q.shape[1] // k_pool.shape[2]
    out = np.zeros(q.shape, np.float32)
    for row, (first, last) in enumerate(zip(query_starts[:-1], query_starts[1:], strict=True)):
        for query in range(first, last):
            position = context_lens[row] - (last - query)
            oldest = 0 if window is None else max(0, position + 1 - window)
            keys = np.arange(oldest, position + 1)
            blocks, offsets = block_tables[row][keys // size], keys % size
            for head in range(q.shape[1] if len(keys) else 0):
                at = (layer, blocks, head // group, offsets)
                scores = _numbers(k_pool, k_scales, at) @ q[query, head].astype(np.float32) * scale
                if soft_cap is not None:
                    scores = np.float32(soft_cap) * np.tanh(scores / np.float32(soft_cap))
                weights = np.exp(scores - scores.max())
                out[query, head] = weights @ _numbers(v_pool, v_scales, at) / weights.sum()
    return out


def _numbers(pool: np.ndarray, scales: np.ndarray | None, at: tuple) -> np.ndarray:
    """Decode the pool's elements at `at`: [keys, D] float32."""
    found = pool[at]
    if found.dtype == np.uint8:
        found = found.view(FLOAT8)
    found = found.astype(np.float32)
    return found if scales is None else found * scales[at].astype(np.float32)[:, None]


def paged_decode(
    q: np.ndarray,  # [B, H, D]
    k_pool: np.ndarray,  # [L, N, K, T, D]
    v_pool: np.ndarray,  # [L, N, K, T, D]
    layer: int,
    block_tables: np.ndarray,  # [B, P]
    context_lens: np.ndarray,  # [B]
    *,
    scale: float,
    **options: Any,
) -> np.ndarray:  # [B, H, D] float32
    """One query per row, at the last position of its context; rows of length 0 return zeros.

    options: those of `paged_prefill`.
    """
    starts = np.arange(len(q) + 1)
    return paged_prefill(
        q, k_pool, v_pool, layer, block_tables, context_lens, starts, scale=scale, **options
    )


def rope_write(
    qkv: np.ndarray,  # [A, S, K, G + 2, D]: G queries, a key and a value of each kv head
    cos: np.ndarray,  # [S, D / 2]
    sin: np.ndarray,  # [S, D / 2]
    pools: tuple[np.ndarray, ...],  # k and v [L, N, K, T, D], then scales [L, N, K, T] if one-byte
    layer: int,
    blocks: np.ndarray,  # [S]
    offsets: np.ndarray,  # [S]
    *,
    dtype: Any,
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:  # [S, K, G, D], pools
    """Sum over A, rotate queries and keys, round to `dtype`, and write keys and values.

    Rotates the pairs (i, i + D / 2). Returns the queries and copies of the pools; see `write_kv`
    and `write_quantised`.
    """
    half, qkv = qkv.shape[-1] // 2, qkv.sum(axis=0)
    low, high = qkv[..., :half], qkv[..., half:]
    cos, sin = cos[:, None, None], sin[:, None, None]
    rotated = np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
    k, v = rotated[:, :, -2].astype(dtype), qkv[:, :, -1].astype(dtype)
    at, written = (layer, blocks, offsets), [*pools]
    for index, values in enumerate((k, v)):
        if len(pools) == 2:
            written[index] = write_kv(pools[index], *at, values)
        else:
            both = write_quantised(pools[index], pools[2 + index], *at, values)
            written[index], written[2 + index] = both
    return rotated[:, :, :-2].astype(dtype), tuple(written)


def add_norm(
    x: np.ndarray,  # [S, E]
    added: np.ndarray,  # [A, S, E]
    weight: np.ndarray,  # [E]
    eps: float,
) -> tuple[np.ndarray, np.ndarray]:  # [S, E] float32, [S, E] in the weight's dtype
    """Add the partial sums `added` to x; return the sum and its RMS norm (arXiv 1910.07467)."""
    total = (x + added.sum(axis=0)).astype(np.float32)
    mean = (total.astype(np.float64) ** 2).mean(axis=-1, keepdims=True)
    return total, (total / np.sqrt(mean + eps) * weight.astype(np.float64)).astype(weight.dtype)


def write_kv(
    pool: np.ndarray,  # [L, N, K, T, D]
    layer: int,
    blocks: np.ndarray,  # [S]
    offsets: np.ndarray,  # [S]
    values: np.ndarray,  # [S, K, D]
) -> np.ndarray:  # [L, N, K, T, D]
    """Copy `pool` and set the values at (layer, block, :, offset); blocks >= N are dropped."""
    pool = pool.copy()
    for block, offset, value in zip(blocks, offsets, values, strict=True):
        if block < pool.shape[1]:
            pool[layer, block, :, offset] = value
    return pool


def write_quantised(
    pool: np.ndarray,  # [L, N, K, T, D] int8 or uint8
    scales: np.ndarray,  # [L, N, K, T] bfloat16
    layer: int,
    blocks: np.ndarray,  # [S]
    offsets: np.ndarray,  # [S]
    values: np.ndarray,  # [S, K, D]
) -> tuple[np.ndarray, np.ndarray]:
    """Copy `pool` and `scales` and write the values in the pool's format; see `write_kv`.

    A vector's scale maps its largest magnitude to 127 (int8) or 448 (fp8), up to the rounding of
    the scale itself; elements that this rounding moves past the limit are clipped.
    """
    largest = np.float32(127 if pool.dtype == np.int8 else 448)
    numbers = values.astype(np.float32)
    new_scales = (np.abs(numbers).max(axis=-1) * (1 / largest)).astype(scales.dtype)
    wide = new_scales.astype(np.float32)
    scaled = numbers / np.where(wide == 0, 1, wide)[..., None]
    scaled = np.clip(scaled, -largest, largest)
    if pool.dtype == np.int8:
        stored = np.rint(scaled).astype(np.int8)
    else:
        stored = scaled.astype(FLOAT8).view(np.uint8)
    return (
        write_kv(pool, layer, blocks, offsets, stored),
        write_kv(scales[..., None], layer, blocks, offsets, new_scales[..., None])[..., 0],
    )
