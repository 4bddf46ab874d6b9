"""The ops in plain XLA, for any backend: the CPU's path and the GPU's baseline.

Attention walks the block tables in groups of pages with an online softmax (arXiv 1805.02867), so
temporaries stay small and the trip count follows the longest context without a new compilation.
Groups hold a fixed number of tokens at absolute positions: what a row computes does not depend
on its neighbours. Steps past a row's own context, or before its window, leave its result bit for
bit as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.formats import decode, format_of, quantise

NEGATIVE = -1e30  # finite, so that a fully masked row gives zeros and not NaN
GROUP_TOKENS = 128  # keys per step of the loop; more would leave the CPU's cache
FEW_ROWS, FEW_ROWS_GROUP_TOKENS = 4, 256
TILE_QUERIES = 32  # queries of one row that share a walk over its pages
TILES_AT_ONCE = 4
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
    group_tokens: int | None = None,
) -> jax.Array:  # [B, H, D]
    """One query a row, at the last position of its context; rows of length 0 return zeros.

    group_tokens: keys per step of the loop. By default few rows have larger groups, since a step
        costs them more than its keys; then a row's bits depend on the number of rows.
    The other options are those of `reference.paged_prefill`.
    """
    rows, heads, width = q.shape
    kv_heads = k_pool.shape[2]
    out = _attend_in_batches(
        q.reshape(rows, kv_heads, heads // kv_heads, width), k_pool, v_pool, layer, block_tables,
        table_rows=jnp.arange(rows, dtype=jnp.int32),
        query_positions=context_lens[:, None] - 1,
        context_lens=context_lens,
        num_tiles=jnp.int32(rows),
        at_once=ROWS_AT_ONCE,
        pages=_pages_per_group(k_pool, group_tokens or _group_tokens(rows)),
        scale=scale, window=window, soft_cap=soft_cap, k_scales=k_scales, v_scales=v_scales,
    )  # fmt: skip
    return out.reshape(q.shape).astype(q.dtype)


def paged_prefill(
    q: jax.Array,  # [S, H, D]
    k_pool: jax.Array,  # [L, N, K, T, D]
    v_pool: jax.Array,  # [L, N, K, T, D]
    layer: jax.Array,  # scalar
    block_tables: jax.Array,  # [B, P]
    context_lens: jax.Array,  # [B]
    query_starts: jax.Array,  # [B + 1]
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    k_scales: jax.Array | None = None,  # [L, N, K, T]
    v_scales: jax.Array | None = None,  # [L, N, K, T]
) -> jax.Array:  # [S, H, D]
    """Causal attention of ragged queries over paged keys; see `reference.paged_prefill`.

    Each row's queries are cut into tiles; groups of tiles walk the pages together up to the
    furthest query among them.
    """
    tokens, heads, width = q.shape
    kv_heads = k_pool.shape[2]
    group = heads // kv_heads
    tile_rows, tile_starts, num_tiles = _tiles(query_starts, tokens)
    queries = (
        tile_starts[:, None] + jnp.arange(TILE_QUERIES, dtype=jnp.int32)[None]
    )  # [tiles, TILE_QUERIES]
    ends = query_starts[tile_rows + 1]
    positions = context_lens[tile_rows][:, None] - (ends[:, None] - queries)
    positions = jnp.where(queries < ends[:, None], positions, -1)
    tiled = jnp.take(q, queries, axis=0, mode="clip")
    tiled = tiled.reshape(-1, TILE_QUERIES, kv_heads, group, width).transpose(0, 2, 1, 3, 4)
    tiled = tiled.reshape(-1, kv_heads, TILE_QUERIES * group, width)
    out = _attend_in_batches(
        tiled, k_pool, v_pool, layer, block_tables,
        table_rows=tile_rows,
        query_positions=positions,
        context_lens=jnp.minimum(context_lens[tile_rows], positions.max(axis=1) + 1),
        num_tiles=num_tiles,
        at_once=TILES_AT_ONCE,
        pages=_pages_per_group(k_pool, GROUP_TOKENS),
        scale=scale, window=window, soft_cap=soft_cap, k_scales=k_scales, v_scales=v_scales,
    )  # fmt: skip
    out = out.reshape(-1, kv_heads, TILE_QUERIES, group, width)
    rows, tiles, lanes = _tile_of_each_token(query_starts, tokens)
    out = out[tiles, :, lanes].reshape(q.shape)
    inside = jnp.arange(tokens) < query_starts[-1]
    return jnp.where(inside[:, None, None], out, 0).astype(q.dtype)


def write_kv(
    pool: jax.Array,  # [L, N, K, T, D]
    layer: jax.Array,  # scalar
    blocks: jax.Array,  # [S]
    offsets: jax.Array,  # [S]
    values: jax.Array,  # [S, K, D]
) -> jax.Array:  # [L, N, K, T, D]
    """Put the values at (layer, block, :, offset); blocks >= N are dropped.

    Padding must be N or more and never -1: a negative index counts from the end, and would
    overwrite the last block.
    """
    return pool.at[layer, blocks, :, offsets].set(values.astype(pool.dtype), mode="drop")


def write_quantised(
    pool: jax.Array,  # [L, N, K, T, D] int8 or uint8
    scales: jax.Array,  # [L, N, K, T] bfloat16
    layer: jax.Array,  # scalar
    blocks: jax.Array,  # [S]
    offsets: jax.Array,  # [S]
    values: jax.Array,  # [S, K, D]
) -> tuple[jax.Array, jax.Array]:
    """`write_kv` of the values in the pool's one-byte format, and of their scales."""
    stored, new = quantise(values, str(format_of(pool)))
    at = (layer, blocks, slice(None), offsets)
    return pool.at[at].set(stored, mode="drop"), scales.at[at].set(new, mode="drop")


def _attend_in_batches(
    q: jax.Array,  # [tiles, K, M, D]
    k_pool: jax.Array,  # [L, N, K, T, D]
    v_pool: jax.Array,  # [L, N, K, T, D]
    layer: jax.Array,  # scalar
    block_tables: jax.Array,  # [B, P]
    *,
    table_rows: jax.Array,  # [tiles]
    query_positions: jax.Array,  # [tiles, M / heads per query]
    context_lens: jax.Array,  # [tiles]
    num_tiles: jax.Array,  # scalar; tiles past it are not computed and are zeros
    at_once: int,
    pages: int,
    **options: Any,
) -> jax.Array:  # [tiles, K, M, D] float32
    """`_attend` for `at_once` tiles at a time, each batch up to its own longest context.

    Small batches keep the gathered pages in the CPU's cache and waste less on short rows.
    """
    count = q.shape[0]
    # A whole number of page groups, filled with N.
    missing = -block_tables.shape[1] % pages
    tables = jnp.pad(block_tables, ((0, 0), (0, missing)), constant_values=k_pool.shape[1])
    attend: Callable[..., jax.Array] = partial(
        _attend, k_pool=k_pool, v_pool=v_pool, layer=layer, pages=pages, **options
    )
    if count <= at_once:
        return attend(q, tables=tables[table_rows], query_positions=query_positions,
                      context_lens=context_lens)  # fmt: skip
    q, table_rows, query_positions, context_lens = (
        jnp.pad(each, [(0, -count % at_once)] + [(0, 0)] * (each.ndim - 1))
        for each in (q, table_rows, query_positions, context_lens)
    )

    def one_batch(index: jax.Array, out: jax.Array) -> jax.Array:
        first = index * at_once
        cut = partial(lax.dynamic_slice_in_dim, start_index=first, slice_size=at_once)
        part = attend(
            cut(q), tables=tables[cut(table_rows)], query_positions=cut(query_positions),
            context_lens=cut(context_lens),
        )  # fmt: skip
        return lax.dynamic_update_slice_in_dim(out, part, first, 0)

    batches = (num_tiles + at_once - 1) // at_once
    return lax.fori_loop(0, batches, one_batch, jnp.zeros(q.shape, jnp.float32))[:count]


def _attend(
    q: jax.Array,  # [B, K, M, D]
    *,
    k_pool: jax.Array,  # [L, N, K, T, D]
    v_pool: jax.Array,  # [L, N, K, T, D]
    layer: jax.Array,  # scalar
    tables: jax.Array,  # [B, P], P a multiple of the pages per group
    query_positions: jax.Array,  # [B, M or M / G]; a query sees keys 0..position
    context_lens: jax.Array,  # [B]; keys past it are never used, whatever they hold
    pages: int,  # of a group
    scale: float,
    window: int | None,
    soft_cap: float | None,
    k_scales: jax.Array | None,  # [L, N, K, T]
    v_scales: jax.Array | None,  # [L, N, K, T]
) -> jax.Array:  # [B, K, M, D] float32
    span = pages * k_pool.shape[3]
    heads_per_query = q.shape[2] // query_positions.shape[1]
    positions = jnp.repeat(query_positions, heads_per_query, axis=1)  # [B, M]
    oldest = None if window is None else _oldest_keys(query_positions, context_lens, window)

    def one_group(
        masked: bool, index: jax.Array, carry: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, ...]:
        best, total, acc = carry
        page_ids = lax.dynamic_slice_in_dim(tables, index * pages, pages, axis=1)
        k = _numbers(_gather(k_pool, layer, page_ids), q.dtype)
        v = _gather(v_pool, layer, page_ids)
        found = None if v_scales is None else _gather_scales(v_scales, layer, page_ids)
        scores = _batched(q, k, transpose=True) * scale
        if k_scales is not None:
            scores = scores * _gather_scales(k_scales, layer, page_ids)
        if soft_cap is not None:
            scores = soft_cap * jnp.tanh(scores / soft_cap)
        if masked:
            known, seen = masks(index)
            scores = jnp.where(seen, scores, NEGATIVE)
            # Masking the weights is not enough: 0 x NaN of an unused page would be NaN.
            v = jnp.where(known[:, None, :, None], v, 0)
            found = None if found is None else jnp.where(known[:, None, None], found, 0)
        new_best = jnp.maximum(best, scores.max(axis=-1))
        weights = jnp.exp(scores - new_best[..., None])
        if masked:
            weights = jnp.where(seen, weights, 0)
        shrink = jnp.exp(best - new_best)
        v = _numbers(v, q.dtype)
        scaled = weights if found is None else weights * found
        acc = acc * shrink[..., None] + _batched(scaled.astype(v.dtype), v, transpose=False)
        return new_best, total * shrink + weights.sum(axis=-1), acc

    def masks(index: jax.Array) -> tuple[jax.Array, jax.Array]:  # [B, span], [B, 1, M, span]
        keys = (index * span + jnp.arange(span, dtype=jnp.int32))[None]
        known = keys < context_lens[:, None]
        if oldest is not None:
            known = known & (keys >= oldest[:, None])
        seen = known[:, None] & (keys[None] <= positions[:, :, None])
        if window is not None:
            seen = seen & (keys[None] > positions[:, :, None] - window)
        return known, seen[:, None]

    carry: tuple[jax.Array, ...] = (
        jnp.full(q.shape[:-1], NEGATIVE, jnp.float32),
        jnp.zeros(q.shape[:-1], jnp.float32),
        jnp.zeros(q.shape, jnp.float32),
    )
    groups = (context_lens.max() + span - 1) // span
    first = jnp.int32(0)
    if oldest is not None:
        first = oldest.min() // span
    else:
        # Groups of which every query sees every key need no masks, and these cost as much as the
        # products. Where a mask hides nothing it changes no bit.
        first = jnp.minimum(_fully_seen(query_positions, context_lens) // span, groups)
        carry = lax.fori_loop(0, first, partial(one_group, False), carry)
    _, total, acc = lax.fori_loop(first, groups, partial(one_group, True), carry)
    out = acc / jnp.where(total == 0, 1, total)[..., None]
    return jnp.where((context_lens > 0)[:, None, None, None], out, 0)


def _fully_seen(
    query_positions: jax.Array,  # [B, queries]
    context_lens: jax.Array,  # [B]
) -> jax.Array:  # scalar
    """How many of the first keys all queries of all rows see; padding does not count."""
    real = (query_positions >= 0) & (query_positions < context_lens[:, None])
    return jnp.where(real, query_positions + 1, jnp.iinfo(jnp.int32).max).min()


def _oldest_keys(
    query_positions: jax.Array,  # [B, queries]
    context_lens: jax.Array,  # [B]
    window: int,
) -> jax.Array:  # [B]
    """The first key that a query of the row sees; past any context if it has no queries."""
    real = (query_positions >= 0) & (query_positions < context_lens[:, None])
    positions = jnp.where(real, query_positions, jnp.iinfo(jnp.int32).max)
    return jnp.maximum(positions.min(axis=1) - (window - 1), 0)


def _batched(left: jax.Array, right: jax.Array, *, transpose: bool) -> jax.Array:
    """[B,K,M,X] x [B,K,X,Y], or x [B,K,Y,X] transposed; one flat batch is fastest on CPU."""
    batch, heads = left.shape[:2]
    product = lax.dot_general(
        left.reshape(batch * heads, *left.shape[2:]),
        right.reshape(batch * heads, *right.shape[2:]),
        (((2,), (2 if transpose else 1,)), ((0,), (0,))),
        preferred_element_type=jnp.float32,
        # Without it a GPU rounds float32 operands to TF32, at an error of 3e-4.
        precision=lax.Precision.HIGHEST if left.dtype == jnp.float32 else None,
    )
    return product.reshape(batch, heads, *product.shape[1:])


def _gather(pool: jax.Array, layer: jax.Array, page_ids: jax.Array) -> jax.Array:
    """Pages [B, pages] of one layer as [B, K, pages * T, D].

    The pool is viewed as rows of one head's page each, so that one take brings contiguous memory
    into the order of the products. A page id of N (padding), or garbage, is clipped or reads some
    other page: what it holds is masked by the caller.
    """
    layers, blocks, kv_heads, size, width = pool.shape
    heads = jnp.arange(kv_heads, dtype=jnp.int32)[None, :, None]
    rows = (layer * blocks + page_ids)[:, None] * kv_heads + heads  # [B, K, pages]
    flat = pool.reshape(layers * blocks * kv_heads, size * width)
    taken = jnp.take(flat, rows, axis=0, mode="clip")
    return taken.reshape(page_ids.shape[0], kv_heads, page_ids.shape[1] * size, width)


def _gather_scales(
    scales: jax.Array,  # [L, N, K, T]
    layer: jax.Array,
    page_ids: jax.Array,  # [B, pages]
) -> jax.Array:  # [B, K, 1, pages * T]
    found = _gather(scales[..., None], layer, page_ids)[:, :, None, :, 0]
    return found.astype(jnp.float32)


def _numbers(stored: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """What a pool's elements stand for, without their scales."""
    return stored if format_of(stored) is None else decode(stored, dtype)


def _group_tokens(rows: int) -> int:
    return FEW_ROWS_GROUP_TOKENS if rows <= FEW_ROWS else GROUP_TOKENS


def _pages_per_group(pool: jax.Array, group_tokens: int) -> int:
    return max(1, group_tokens // pool.shape[3])


def _tiles(query_starts: jax.Array, tokens: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Row and first query of every tile, and the number of tiles in use.

    There are enough tiles for any split of `tokens` queries over the rows; those past the number
    in use hold no query.
    """
    rows = query_starts.shape[0] - 1
    most = min(tokens, tokens // TILE_QUERIES + rows)
    ends = _tile_ends(query_starts)
    index = jnp.arange(most, dtype=jnp.int32)
    row = jnp.searchsorted(ends, index, side="right", method="compare_all").astype(jnp.int32)
    row = jnp.minimum(row, rows - 1)
    first = jnp.where(row > 0, ends[row - 1], 0)
    return row, query_starts[row] + (index - first) * TILE_QUERIES, ends[-1]


def _tile_ends(query_starts: jax.Array) -> jax.Array:
    lengths = query_starts[1:] - query_starts[:-1]
    return jnp.cumsum((lengths + TILE_QUERIES - 1) // TILE_QUERIES).astype(jnp.int32)


def _tile_of_each_token(
    query_starts: jax.Array, tokens: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Row, tile and place in the tile of every query token; those of no row get the last row's."""
    token = jnp.arange(tokens, dtype=jnp.int32)
    row = jnp.searchsorted(query_starts[1:], token, side="right", method="compare_all")
    row = jnp.minimum(row.astype(jnp.int32), query_starts.shape[0] - 2)
    ends = _tile_ends(query_starts)
    first = jnp.where(row > 0, ends[row - 1], 0)
    inside = token - query_starts[row]
    return row, first + inside // TILE_QUERIES, inside % TILE_QUERIES
