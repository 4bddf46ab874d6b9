"""Prefill attention in plain XLA: ragged queries, split into tiles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.xla_walk import (
    Attend,
    Keys,
    divide,
    pages_per_group,
    per_platform,
    put_rows,
    slice_rows,
    take_rows,
    walk,
    whole_groups,
)

TILE_QUERIES = 32  # queries of one row that share a loop over its pages
TILES_AT_ONCE = 4


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

    Each row's queries are split into tiles; batches of tiles share a loop over the pages up to
    the last position among their queries. Each tile is sliced from and written to the ragged array
    directly, so the cost depends on the actual queries and not on the padded number of rows.
    """
    tokens = q.shape[0]
    pages = pages_per_group(k_pool)
    attend = partial(walk, pages=pages, scale=scale, window=window, soft_cap=soft_cap)
    # The last tiles may extend past the last query.
    padded = jnp.pad(q, ((0, TILES_AT_ONCE * TILE_QUERIES), (0, 0), (0, 0)))
    tables = whole_groups(block_tables, k_pool, pages)
    out = per_platform(
        _in_tiles,
        attend,
        padded,
        _tiles(query_starts, context_lens, tables, tokens),
        Keys(k_pool, v_pool, layer, k_scales, v_scales),
    )[:tokens]
    inside = jnp.arange(tokens) < query_starts[-1]
    return jnp.where(inside[:, None, None], out, 0)


class _Tiles(NamedTuple):
    """M tiles; each holds queries of one row that share a loop over its pages."""

    starts: jax.Array  # [M], the first query
    positions: jax.Array  # [M, TILE_QUERIES]; -1 for padding
    context_lens: jax.Array  # [M], up to the last query
    tables: jax.Array  # [M, P]
    batches: jax.Array  # scalar, number of batches of TILES_AT_ONCE tiles in use


def _in_tiles(
    attend: Attend,
    padded: jax.Array,  # [S + TILES_AT_ONCE * TILE_QUERIES, H, D]
    tiles: _Tiles,
    keys: Keys,
) -> jax.Array:  # as padded, in its type
    """Run `attend` on TILES_AT_ONCE tiles at a time."""
    heads, kv_heads = padded.shape[1], keys.k_pool.shape[2]

    def one_batch(index: jax.Array, out: jax.Array) -> jax.Array:
        first = index * TILES_AT_ONCE
        starts, positions, lens, tables = (
            slice_rows(each, first, TILES_AT_ONCE) for each in tiles[:-1]
        )
        queries = _heads_first(
            [slice_rows(padded, start, TILE_QUERIES) for start in starts], kv_heads
        )
        part = _queries_first(attend(queries, keys, tables, positions, lens), heads)
        # In ascending order: the next row's tiles overwrite what a tile writes past its row's end.
        for start, tile in zip(starts, part, strict=True):
            out = put_rows(out, tile.astype(out.dtype), start)
        return out

    return lax.fori_loop(0, tiles.batches, one_batch, jnp.zeros_like(padded))


def _tiles(
    query_starts: jax.Array,  # [B + 1]
    context_lens: jax.Array,  # [B]
    tables: jax.Array,  # [B, P]
    tokens: int,
) -> _Tiles:
    """Split every row's queries into tiles.

    The number of tiles is a multiple of TILES_AT_ONCE and sufficient for any distribution of
    `tokens` queries over the rows; unused tiles begin at or after the end of all queries.
    """
    rows = query_starts.shape[0] - 1
    most = min(tokens, tokens // TILE_QUERIES + rows)
    lengths = query_starts[1:] - query_starts[:-1]
    ends = jnp.cumsum(divide(lengths + TILE_QUERIES - 1, TILE_QUERIES))
    index = jnp.arange(most + -most % TILES_AT_ONCE, dtype=jnp.int32)
    row = jnp.searchsorted(ends, index, side="right", method="compare_all").astype(jnp.int32)
    row = jnp.minimum(row, rows - 1)
    first = jnp.where(row > 0, take_rows(ends, row - 1), 0)
    starts = take_rows(query_starts, row) + (index - first) * TILE_QUERIES
    queries = starts[:, None] + jnp.arange(TILE_QUERIES, dtype=jnp.int32)[None]
    row_ends, lens = take_rows(query_starts, row + 1)[:, None], take_rows(context_lens, row)
    positions = jnp.where(queries < row_ends, lens[:, None] - (row_ends - queries), -1)
    return _Tiles(
        starts,
        positions,
        jnp.minimum(lens, positions.max(axis=1) + 1),
        take_rows(tables, row),
        divide(ends[-1] + TILES_AT_ONCE - 1, TILES_AT_ONCE),
    )


def _heads_first(tiles: Sequence[jax.Array], kv_heads: int) -> jax.Array:  # [B, K, M, D]
    """Stack tiles of [queries, H, D] and transpose the heads first; M is queries x G."""
    stacked = jnp.stack(tiles)
    count, queries, heads, width = stacked.shape
    grouped = stacked.reshape(count, queries, kv_heads, heads // kv_heads, width)
    return grouped.transpose(0, 2, 1, 3, 4).reshape(count, kv_heads, -1, width)


def _queries_first(tiles: jax.Array, heads: int) -> jax.Array:  # [B, queries, H, D]
    """The inverse of `_heads_first`."""
    count, kv_heads, _, width = tiles.shape
    grouped = tiles.reshape(count, kv_heads, -1, heads // kv_heads, width)
    return grouped.transpose(0, 2, 1, 3, 4).reshape(count, -1, heads, width)
