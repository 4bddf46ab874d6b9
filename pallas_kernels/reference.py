"""The meaning of each op: naive, float32, one loop per query. This is the specification."""

from __future__ import annotations

import numpy as np


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
) -> np.ndarray:  # [S, H, D] float32
    """Causal attention of ragged queries over paged keys.

    Row b owns the queries [query_starts[b], query_starts[b+1]), which are the last positions of
    its context; context_lens[b] counts the keys in the pool, those of the queries included. Query
    head h reads kv head h // G. Queries of no row, and queries without a key, return zeros.
    """
    block_size = k_pool.shape[3]
    group = q.shape[1] // k_pool.shape[2]
    out = np.zeros(q.shape, np.float32)
    for row, (first, last) in enumerate(zip(query_starts[:-1], query_starts[1:], strict=True)):
        for query in range(first, last):
            position = context_lens[row] - (last - query)
            keys = np.arange(position + 1)
            blocks, offsets = block_tables[row][keys // block_size], keys % block_size
            for head in range(q.shape[1] if len(keys) else 0):
                at = (layer, blocks, head // group, offsets)
                scores = k_pool[at].astype(np.float32) @ q[query, head].astype(np.float32) * scale
                weights = np.exp(scores - scores.max())
                out[query, head] = weights @ v_pool[at].astype(np.float32) / weights.sum()
    return out


def paged_decode(
    q: np.ndarray,  # [B, H, D]
    k_pool: np.ndarray,  # [L, N, K, T, D]
    v_pool: np.ndarray,  # [L, N, K, T, D]
    layer: int,
    block_tables: np.ndarray,  # [B, P]
    context_lens: np.ndarray,  # [B]
    *,
    scale: float,
) -> np.ndarray:  # [B, H, D] float32
    """One query a row, at the last position of its context; rows of length 0 return zeros."""
    starts = np.arange(len(q) + 1)
    return paged_prefill(q, k_pool, v_pool, layer, block_tables, context_lens, starts, scale=scale)


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
