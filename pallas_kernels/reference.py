"""The meaning of each op: naive, float32, one loop per query. This is the specification."""

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

    Row b owns the queries [query_starts[b], query_starts[b+1]), which are the last positions of
    its context; context_lens[b] counts the keys in the pool, those of the queries included. Query
    head h reads kv head h // G. Queries of no row, and queries without a key, return zeros.

    window: a query sees its own key and the window - 1 before it; None: all of them.
    soft_cap: scores become soft_cap * tanh(score / soft_cap) (arXiv 2408.00118).
    k_scales, v_scales: of the formats in `formats`, to which a pool of one-byte elements belongs.
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
    """What the pool holds there: [keys, D] float32."""
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
    """One query a row, at the last position of its context; rows of length 0 return zeros.

    options: those of `paged_prefill`.
    """
    starts = np.arange(len(q) + 1)
    return paged_prefill(
        q, k_pool, v_pool, layer, block_tables, context_lens, starts, scale=scale, **options
    )


def write_kv(
    pool: np.ndarray,  # [L, N, K, T, D]
    layer: int,
    blocks: np.ndarray,  # [S]
    offsets: np.ndarray,  # [S]
    values: np.ndarray,  # [S, K, D]
) -> np.ndarray:  # [L, N, K, T, D]
    """A copy of `pool` with the values at (layer, block, :, offset); blocks >= N are dropped."""
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
    """Copies of `pool` and `scales` with the values in the pool's format; see `write_kv`.

    A vector's scale takes its largest element to 127 (int8) or 448 (fp8), but for the rounding of
    the scale itself; what that takes past the largest is cut.
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
