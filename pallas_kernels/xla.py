"""The ops in plain XLA, for any backend: the CPU's path and the GPU's baseline.

Attention walks the block tables in groups of pages with an online softmax (arXiv 1805.02867), so
temporaries stay small and the trip count follows the longest context without a new compilation.
Groups hold a fixed number of tokens at absolute positions: what a row computes does not depend
on its neighbours. Steps past a row's own context, or before its window, leave its result bit for
bit as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.formats import decode, format_of, quantise

# The score of what a query does not see. It is so far below the least maximum that the exponential
# of the difference is 0, and finite, so that a row that sees nothing gives zeros and not NaN.
NEGATIVE, LEAST = -1e30, -5e29
GROUP_TOKENS = 128  # keys per step of the loop; more would leave the CPU's cache
TILE_QUERIES = 32  # queries of one row that share a walk over its pages
TILES_AT_ONCE = 4
ROWS_AT_ONCE = 16
# How to compile on CPU: LLVM's level. 3, the default, takes half as long again to compile, and its
# loops, which gather pages and take exponentials, are slower: a step of 64 rows over 256 keys took
# 1.2 times as long.
CPU_OPTIONS = {"xla_backend_optimization_level": 1}


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
    """One query a row, at the last position of its context; rows of length 0 return zeros.

    The options are those of `reference.paged_prefill`.
    """
    rows, heads, width = q.shape
    kv_heads = k_pool.shape[2]
    pages = _pages_per_group(k_pool)
    attend = partial(_attend, pages=pages, scale=scale, window=window, soft_cap=soft_cap)
    out = _compiled_once(
        partial(_in_batches, attend),
        q.reshape(rows, kv_heads, heads // kv_heads, width),
        _whole_groups(block_tables, k_pool, pages),
        context_lens,
        _Keys(k_pool, v_pool, layer, k_scales, v_scales),
    )
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
    furthest query among them. Tiles are read and written one by one, where they lie, so what is
    done depends on the queries that there are and not on how many rows there is room for.
    """
    tokens = q.shape[0]
    pages = _pages_per_group(k_pool)
    attend = partial(_attend, pages=pages, scale=scale, window=window, soft_cap=soft_cap)
    # Room for the last tiles to reach past the last query.
    padded = jnp.pad(q, ((0, TILES_AT_ONCE * TILE_QUERIES), (0, 0), (0, 0)))
    tables = _whole_groups(block_tables, k_pool, pages)
    out = _compiled_once(
        partial(_in_tiles, attend),
        padded,
        _tiles(query_starts, context_lens, tables, tokens),
        _Keys(k_pool, v_pool, layer, k_scales, v_scales),
    )[:tokens]
    inside = jnp.arange(tokens) < query_starts[-1]
    return jnp.where(inside[:, None, None], out, 0)


def write_kv(
    pool: jax.Array,  # [L, N, K, T, D], or scales without D
    layer: jax.Array,  # scalar
    blocks: jax.Array,  # [S]
    offsets: jax.Array,  # [S]
    values: jax.Array,  # [S, K, D], or [S, K]
) -> jax.Array:  # as pool
    """Put the values at (layer, block, :, offset); blocks outside of 0 ... N - 1 are dropped."""
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
    """`write_kv` of the values in the pool's one-byte format, and of their scales."""
    stored, new = quantise(values, str(format_of(pool)))
    at = (layer, blocks, offsets)
    return write_kv(pool, *at, stored), write_kv(scales, *at, new)


class _Keys(NamedTuple):
    """What a layer's queries read."""

    k_pool: jax.Array  # [L, N, K, T, D]
    v_pool: jax.Array  # [L, N, K, T, D]
    layer: jax.Array  # scalar
    k_scales: jax.Array | None  # [L, N, K, T]
    v_scales: jax.Array | None  # [L, N, K, T]


class _Tiles(NamedTuple):
    """Queries of one row each that share a walk over its pages."""

    starts: jax.Array  # [M], the first query
    positions: jax.Array  # [M, TILE_QUERIES]; -1 of padding
    context_lens: jax.Array  # [M], up to the last query
    tables: jax.Array  # [M, P]
    batches: jax.Array  # scalar: of TILES_AT_ONCE, in use


def _compiled_once(op: Callable[..., jax.Array], *args: Any) -> jax.Array:
    """`op(*args)`, of which XLA on CPU compiles one copy for all layers.

    It inlines calls before it does anything else, and then compiles every layer's own, unless a
    call asks to be inlined late. Such a call copies whatever argument it writes, so the pools may
    only be read in it.
    """
    once = jax.jit(op, inline=jax.Inline.XLA_LATE)
    return lax.platform_dependent(*args, cpu=once, default=op)


def _in_batches(
    attend: Callable[..., jax.Array],
    q: jax.Array,  # [B, K, G, D]
    tables: jax.Array,  # [B, P]
    context_lens: jax.Array,  # [B]
    keys: _Keys,
) -> jax.Array:  # [B, K, G, D] float32
    """`attend` for ROWS_AT_ONCE rows at a time, each batch up to its own longest context.

    Small batches keep the gathered pages in the CPU's cache and waste less on short rows.
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
        return _put(out, some(*(_slice(each, first, ROWS_AT_ONCE) for each in arrays)), first)

    out = jnp.zeros(arrays[0].shape, jnp.float32)
    return lax.fori_loop(0, batches, one_batch, out)[:rows]


def _in_tiles(
    attend: Callable[..., jax.Array],
    padded: jax.Array,  # [S + TILES_AT_ONCE * TILE_QUERIES, H, D]
    tiles: _Tiles,
    keys: _Keys,
) -> jax.Array:  # as padded, in its type
    """`attend` for TILES_AT_ONCE tiles at a time."""
    heads, kv_heads = padded.shape[1], keys.k_pool.shape[2]

    def one_batch(index: jax.Array, out: jax.Array) -> jax.Array:
        first = index * TILES_AT_ONCE
        starts, positions, lens, tables = (
            _slice(each, first, TILES_AT_ONCE) for each in tiles[:-1]
        )
        queries = _heads_first([_slice(padded, start, TILE_QUERIES) for start in starts], kv_heads)
        part = _queries_first(attend(queries, keys, tables, positions, lens), heads)
        # In ascending order: what a tile writes past its row's end, the next row's overwrites.
        for start, tile in zip(starts, part, strict=True):
            out = _put(out, tile.astype(out.dtype), start)
        return out

    return lax.fori_loop(0, tiles.batches, one_batch, jnp.zeros_like(padded))


def _attend(
    q: jax.Array,  # [B, K, M, D]
    keys: _Keys,
    *rows: jax.Array,  # tables, query_positions, context_lens
    **options: Any,
) -> jax.Array:  # [B, K, M, D] float32
    """`_walk` with products of operands in the queries' type, on CPU in float32.

    XLA's code there moves gathered 16-bit elements one by one, unless it converts them on the way:
    then decode and prefill take 0.75 of the time. (Measured without AVX-512; whether products of
    prefill in 16 bits make up for it where the CPU has them is not known.)
    """
    walk: Callable[..., jax.Array] = partial(_walk, **options)

    def in_float32(q: jax.Array, *others: Any) -> jax.Array:
        return walk(q.astype(jnp.float32), *others)

    return lax.platform_dependent(q, keys, *rows, cpu=in_float32, default=walk)


def _walk(
    q: jax.Array,  # [B, K, M, D]
    keys: _Keys,
    tables: jax.Array,  # [B, P], P a multiple of the pages per group
    query_positions: jax.Array,  # [B, M or M / G], below context_lens; -1 of padding
    context_lens: jax.Array,  # [B]; keys past it are never used, whatever they hold
    *,
    pages: int,  # of a group
    scale: float,
    window: int | None,
    soft_cap: float | None,
) -> jax.Array:  # [B, K, M, D] float32
    k_pool, v_pool, layer, k_scales, v_scales = keys
    span = pages * k_pool.shape[3]
    heads_per_query = q.shape[2] // query_positions.shape[1]
    positions = jnp.repeat(query_positions, heads_per_query, axis=1)  # [B, M]
    oldest = None if window is None else _oldest_keys(query_positions, context_lens, window)

    def one_group(index: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        best, total, acc = carry
        page_ids = _slice(tables, index * pages, pages, axis=1)
        k = _numbers(_gather(k_pool, layer, page_ids), q.dtype)
        v = _gather(v_pool, layer, page_ids)
        found = None if v_scales is None else _gather_scales(v_scales, layer, page_ids)
        scores = _batched(q, k, transpose=True) * scale
        if k_scales is not None:
            scores = scores * _gather_scales(k_scales, layer, page_ids)
        if soft_cap is not None:
            scores = soft_cap * jnp.tanh(scores / soft_cap)
        known, seen = masks(index)
        scores = jnp.where(seen, scores, NEGATIVE)
        # Masking the scores is not enough: 0 x NaN of an unused page would be NaN.
        v = jnp.where(known[:, None, :, None], v, 0)
        found = None if found is None else jnp.where(known[:, None, None], found, 0)
        new_best = jnp.maximum(best, scores.max(axis=-1))
        weights = jnp.exp(scores - new_best[..., None])
        shrink = jnp.exp(best - new_best)
        v = _numbers(v, q.dtype)
        scaled = weights if found is None else weights * found
        acc = acc * shrink[..., None] + _batched(scaled.astype(v.dtype), v, transpose=False)
        return new_best, total * shrink + weights.sum(axis=-1), acc

    def masks(index: jax.Array) -> tuple[jax.Array, jax.Array]:  # [B, span], [B, 1, M, span]
        places = (index * span + jnp.arange(span, dtype=jnp.int32))[None]
        known = places < context_lens[:, None]
        if oldest is not None:
            known = known & (places >= oldest[:, None])
        seen = places[None] <= positions[:, :, None]
        if window is not None:
            seen = seen & (places[None] > positions[:, :, None] - window)
        return known, seen[:, None]

    carry: tuple[jax.Array, ...] = (
        jnp.full(q.shape[:-1], LEAST, jnp.float32),
        jnp.zeros(q.shape[:-1], jnp.float32),
        jnp.zeros(q.shape, jnp.float32),
    )
    groups = _over(context_lens.max() + span - 1, span)
    first = jnp.int32(0) if oldest is None else _over(oldest.min(), span)
    _, total, acc = lax.fori_loop(first, groups, one_group, carry)
    out = acc / jnp.where(total == 0, 1, total)[..., None]
    return jnp.where((context_lens > 0)[:, None, None, None], out, 0)


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
    return stored.astype(dtype) if format_of(stored) is None else decode(stored, dtype)


def _pages_per_group(pool: jax.Array) -> int:
    return max(1, GROUP_TOKENS // pool.shape[3])


def _whole_groups(tables: jax.Array, pool: jax.Array, pages: int) -> jax.Array:
    """Pad the tables with N to a whole number of page groups."""
    missing = -tables.shape[1] % pages
    return jnp.pad(tables, ((0, 0), (0, missing)), constant_values=pool.shape[1])


def _tiles(
    query_starts: jax.Array,  # [B + 1]
    context_lens: jax.Array,  # [B]
    tables: jax.Array,  # [B, P]
    tokens: int,
) -> _Tiles:
    """Every row's queries, cut into tiles.

    There are enough tiles for any split of `tokens` queries over the rows, in whole batches; those
    past the number in use begin where all queries end, or later.
    """
    rows = query_starts.shape[0] - 1
    most = min(tokens, tokens // TILE_QUERIES + rows)
    lengths = query_starts[1:] - query_starts[:-1]
    ends = jnp.cumsum(_over(lengths + TILE_QUERIES - 1, TILE_QUERIES))
    index = jnp.arange(most + -most % TILES_AT_ONCE, dtype=jnp.int32)
    row = jnp.searchsorted(ends, index, side="right", method="compare_all").astype(jnp.int32)
    row = jnp.minimum(row, rows - 1)
    first = jnp.where(row > 0, _rows(ends, row - 1), 0)
    starts = _rows(query_starts, row) + (index - first) * TILE_QUERIES
    queries = starts[:, None] + jnp.arange(TILE_QUERIES, dtype=jnp.int32)[None]
    row_ends, lens = _rows(query_starts, row + 1)[:, None], _rows(context_lens, row)
    positions = jnp.where(queries < row_ends, lens[:, None] - (row_ends - queries), -1)
    return _Tiles(
        starts,
        positions,
        jnp.minimum(lens, positions.max(axis=1) + 1),
        _rows(tables, row),
        _over(ends[-1] + TILES_AT_ONCE - 1, TILES_AT_ONCE),
    )


def _heads_first(tiles: Sequence[jax.Array], kv_heads: int) -> jax.Array:  # [B, K, M, D]
    """From tiles of [queries, H, D]; M is queries x G."""
    stacked = jnp.stack(tiles)
    count, queries, heads, width = stacked.shape
    grouped = stacked.reshape(count, queries, kv_heads, heads // kv_heads, width)
    return grouped.transpose(0, 2, 1, 3, 4).reshape(count, kv_heads, -1, width)


def _queries_first(tiles: jax.Array, heads: int) -> jax.Array:  # [B, queries, H, D]
    """Undoes `_heads_first`."""
    count, kv_heads, _, width = tiles.shape
    grouped = tiles.reshape(count, kv_heads, -1, heads // kv_heads, width)
    return grouped.transpose(0, 2, 1, 3, 4).reshape(count, -1, heads, width)


# Indices and numbers here are not negative, or what comes of them is not used. Saying so saves XLA
# the code for those that are, which a step would have in every layer.


def _rows(x: jax.Array, indices: jax.Array) -> jax.Array:
    return jnp.take(x, indices, axis=0, mode="clip")


def _slice(x: jax.Array, start: jax.Array, size: int, axis: int = 0) -> jax.Array:
    return lax.dynamic_slice_in_dim(x, start, size, axis, allow_negative_indices=False)


def _put(x: jax.Array, rows: jax.Array, start: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice_in_dim(x, rows, start, 0, allow_negative_indices=False)


def _over(x: jax.Array, divisor: int) -> jax.Array:
    return lax.div(x.astype(jnp.uint32), jnp.uint32(divisor)).astype(jnp.int32)
