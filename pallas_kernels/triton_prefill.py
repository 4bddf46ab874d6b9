"""Paged attention of ragged queries for NVIDIA GPUs, in Pallas' Triton backend.

For prompt chunks and mixed lengths, down to a few tokens per row. A program processes a tile of
consecutive queries of one row, with the G query heads of one kv head as additional tile rows, so
that each loaded key is used for all of them and the product is large enough for wgmma. It loops
over the keys up to the last query's position, with an online softmax in base 2 (arXiv 2307.08691):
first, without masks, over the key blocks that all queries attend to entirely, then over the rest.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from pallas_kernels.pages import (
    NEGATIVE,
    KeyValues,
    check_call,
    compute_dtype,
    lanes_of,
    log2_scores,
    padded,
    scratch_spec,
    weighted_values,
)
from pallas_kernels.tiles import H200, Device, PrefillTiles, prefill_tiles


def paged_prefill(
    q: jax.Array,  # [S, H, D]
    k_pool: jax.Array,  # [L, N, K, T, D]
    v_pool: jax.Array,  # [L, N, K, T, D]
    layer: jax.Array,  # scalar int32
    block_tables: jax.Array,  # [B, P] int32
    context_lens: jax.Array,  # [B] int32
    query_starts: jax.Array,  # [B + 1] int32
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    k_scales: jax.Array | None = None,  # [L, N, K, T]
    v_scales: jax.Array | None = None,  # [L, N, K, T]
    tiles: PrefillTiles | None = None,
    device: Device = H200,
    interpret: bool = False,
) -> jax.Array:  # [S, H, D]
    """See `reference.paged_prefill`.

    Tiles begin at each row's first query and key blocks at absolute positions, so a row's result
    is bit-identical in every batch.

    tiles: tile sizes; None: those that `tiles.prefill_tiles` chooses for `device`.

    Raises ValueError for shapes and options that the kernel does not support.
    """
    check_call(q, k_pool, v_pool, k_scales, v_scales, window, soft_cap)
    tokens, heads, width = q.shape
    kv_heads, size = k_pool.shape[2:4]
    rows, group = block_tables.shape[0], heads // kv_heads
    tiles = tiles or prefill_tiles(width, group, q.dtype, k_pool.dtype, device)
    if group > tiles.rows:
        raise ValueError(
            f"{group} query heads share a kv head; supported: up to the {tiles.rows} rows of a tile"
        )
    problem = KeyValues(
        size, width, scale, window, soft_cap, k_scales is not None, compute_dtype(q, k_pool)
    )
    scales = [] if k_scales is None else [k_scales, v_scales]
    inputs = [
        q, layer.reshape(1), block_tables, context_lens, query_starts, k_pool, v_pool, *scales,
    ]  # fmt: skip
    run = pl.pallas_call(
        partial(_walk_one_tile, problem=problem, tiles=tiles, rows=rows, group=group),
        grid=(tokens // tiles.queries(group) + rows + 1, kv_heads),
        in_specs=[scratch_spec()] * len(inputs),
        out_specs=scratch_spec(),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        compiler_params=plt.CompilerParams(num_warps=tiles.num_warps, num_stages=tiles.num_stages),
        interpret=interpret,
        name="paged_prefill",
    )
    return run(*inputs)


def _find_tile(
    starts_ref: Any,  # [B + 1]
    tile: jax.Array,
    queries: int,
    rows: int,
    tokens: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The row of a tile, the tile's first query, and the end of the row's queries.

    Row b's tiles begin at index `starts[b] // queries + b`: this leaves room for the partly filled
    last tile of every row without a sum over the preceding rows. Queries after those of all rows
    belong to row B.
    """
    row_ids = lax.iota(jnp.int32, padded(rows + 1))
    inside = row_ids <= rows
    starts = plt.load(starts_ref.at[row_ids], mask=inside, other=0)
    before = inside & (starts // queries + row_ids <= tile)
    row = before.astype(jnp.int32).sum() - 1
    start = plt.load(starts_ref.at[row])
    end = plt.load(starts_ref.at[jnp.minimum(row + 1, rows)])
    end = jnp.where(row == rows, tokens, end)
    return row, start + (tile - start // queries - row) * queries, end


def _walk_one_tile(
    q_ref: Any,
    layer_ref: Any,
    tables_ref: Any,
    lens_ref: Any,
    starts_ref: Any,
    k_ref: Any,
    v_ref: Any,
    *refs: Any,
    problem: KeyValues,
    tiles: PrefillTiles,
    rows: int,
    group: int,
) -> None:
    """Attend with the queries of one tile; see the module docstring."""
    out_ref, kv_head, layer = refs[-1], pl.program_id(1), layer_ref[0]
    queries, block = tiles.queries(group), tiles.block_tokens
    row, first, end = _find_tile(starts_ref, pl.program_id(0), queries, rows, q_ref.shape[0])
    count = jnp.clip(end - first, 0, queries)
    known = row < rows  # the queries of no row, at the end, have no keys
    length = jnp.where(known, plt.load(lens_ref.at[jnp.minimum(row, rows - 1)]), 0)
    first_position = jnp.where(known, length - (end - first), -queries)
    last_key = first_position + count  # one past it

    lanes = lax.iota(jnp.int32, tiles.rows)
    wide = lanes_of(problem.width)
    real = (lanes // group < count) & (lanes < queries * group)
    positions = first_position + lanes // group
    head = kv_head * group + lanes % group
    at_q = ((first + lanes // group)[:, None], head[:, None], wide[None])
    inside = real[:, None] & (wide < problem.width)[None]
    q = plt.load(q_ref.at[at_q], mask=inside, other=0.0).astype(problem.dtype)
    page_refs = (tables_ref, k_ref, v_ref, *refs[:-1])

    def one_block(
        masked: bool, index: jax.Array, carry: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, ...]:
        best, total, acc = carry
        keys = index * block + lax.iota(jnp.int32, block)
        exist = keys < last_key
        if problem.window is not None:  # blocks before the window may have been freed
            exist &= keys > first_position - problem.window
        loaded = problem.load(page_refs, layer, row, kv_head, keys, exist)
        scores = log2_scores(problem, q, loaded)
        if masked:
            seen = keys[None] <= positions[:, None]
            if problem.window is not None:
                seen &= keys[None] > positions[:, None] - problem.window
            scores = jnp.where(seen, scores, NEGATIVE)
        new_best = jnp.maximum(best, scores.max(axis=1))
        weights = jnp.exp2(scores - new_best[:, None])
        if masked:  # `best` is still NEGATIVE for a query whose keys were all masked so far
            weights = jnp.where(seen, weights, 0.0)
        shrink = jnp.exp2(best - new_best)
        acc = acc * shrink[:, None] + weighted_values(weights, loaded)
        return new_best, total * shrink + weights.sum(axis=1), acc

    carry: tuple[jax.Array, ...] = (
        jnp.full(lanes.shape, NEGATIVE, jnp.float32),
        jnp.zeros(lanes.shape, jnp.float32),
        jnp.zeros((lanes.size, wide.size), jnp.float32),
    )
    begin, stop = jnp.int32(0), pl.cdiv(jnp.maximum(last_key, 0), block)
    if problem.window is None:
        whole = jnp.maximum(first_position + 1, 0) // block
        carry = lax.fori_loop(0, whole, partial(one_block, False), carry)
        begin = whole
    else:
        begin = jnp.maximum(first_position + 1 - problem.window, 0) // block
    _, total, acc = lax.fori_loop(begin, jnp.maximum(begin, stop), partial(one_block, True), carry)
    out = acc / jnp.where(total == 0, 1.0, total)[:, None]
    plt.store(out_ref.at[at_q], out.astype(out_ref.dtype), mask=inside)
