"""Paged decode attention for NVIDIA GPUs, in Pallas' Triton backend: one query per row.

Keys are split as in Flash-Decoding: program (row, kv head, split) loops over its part of the row's
context with an online softmax (arXiv 1805.02867) in base 2 and writes a float32 partial result; a
second, small kernel combines a row's partial results. The kernel computes the length of a split
from each row's own context, so the cost of a row depends on its length, not on the table's width.
"""

from __future__ import annotations

from dataclasses import replace
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
from pallas_kernels.tiles import H200, DecodeTiles, Device, decode_tiles

JOIN_AT_ONCE = 32  # partial results that the second kernel reads per iteration


def paged_decode(
    q: jax.Array,  # [B, H, D]
    k_pool: jax.Array,  # [L, N, K, T, D]
    v_pool: jax.Array,  # [L, N, K, T, D]
    layer: jax.Array,  # scalar int32
    block_tables: jax.Array,  # [B, P] int32
    context_lens: jax.Array,  # [B] int32
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    k_scales: jax.Array | None = None,  # [L, N, K, T]
    v_scales: jax.Array | None = None,  # [L, N, K, T]
    fixed_split_tokens: int | None = None,
    tiles: DecodeTiles | None = None,
    device: Device = H200,
    interpret: bool = False,
) -> jax.Array:  # [B, H, D]
    """See `reference.paged_decode`.

    fixed_split_tokens: split every row's keys at absolute multiples of this many tokens instead of
    evenly, so that a row's result is bit-identical in every batch.
    tiles: tile sizes; None: those that `tiles.decode_tiles` chooses for `device`.

    Raises ValueError for shapes and options that the kernel does not support.
    """
    check_call(q, k_pool, v_pool, k_scales, v_scales, window, soft_cap)
    rows, heads, width = q.shape
    kv_heads, size = k_pool.shape[2:4]
    group, context = heads // kv_heads, block_tables.shape[1] * size
    if tiles is None:
        tiles = decode_tiles(rows, kv_heads, width, context, q.dtype, k_pool.dtype, device)
    if fixed_split_tokens is not None:
        tiles = replace(tiles, splits=1, fixed_split_tokens=fixed_split_tokens)
    splits = _num_splits(tiles, context, window)
    problem = KeyValues(
        size, width, scale, window, soft_cap, k_scales is not None, compute_dtype(q, k_pool)
    )
    body = partial(_walk_one_split, problem=problem, tiles=tiles, splits=splits, group=group)
    scales = [] if k_scales is None else [k_scales, v_scales]
    inputs = [q, layer.reshape(1), block_tables, context_lens, k_pool, v_pool, *scales]
    alone = splits == 1
    out_shape = [jax.ShapeDtypeStruct(q.shape, q.dtype)]
    if not alone:
        partials = (rows, splits, heads)
        out_shape = [
            jax.ShapeDtypeStruct((*partials, width), jnp.float32),
            jax.ShapeDtypeStruct(partials, jnp.float32),
            jax.ShapeDtypeStruct(partials, jnp.float32),
        ]
    run = pl.pallas_call(
        body,
        grid=(rows, kv_heads, splits),
        in_specs=[scratch_spec()] * len(inputs),
        out_specs=[scratch_spec()] * len(out_shape),
        out_shape=out_shape,
        compiler_params=plt.CompilerParams(num_warps=tiles.num_warps, num_stages=tiles.num_stages),
        interpret=interpret,
        name="paged_decode",
    )
    out = run(*inputs)
    if alone:
        return out[0]
    acc, best, total = out
    return _join(acc, best, total, context_lens, tiles, window, q.dtype, interpret)


def _num_splits(tiles: DecodeTiles, context: int, window: int | None) -> int:
    """Splits of the grid; with a fixed size, the most that a row's keys can overlap."""
    fixed = tiles.fixed_split_tokens
    if fixed is None:
        return tiles.splits
    most = context if window is None else min(context, window + fixed - 1)
    return -(-most // fixed)


def _range_of_splits(
    length: jax.Array, tiles: DecodeTiles, splits: int, window: int | None
) -> tuple[Any, Any, Any, Any]:
    """Begin and end of the row's keys, begin of split 0, and split size, in units of key blocks."""
    block = tiles.block_tokens
    oldest = 0 if window is None else jnp.maximum(length - window, 0)
    first, end = oldest // block, pl.cdiv(length, block)
    if tiles.fixed_split_tokens is None:
        return first, end, first, pl.cdiv(end - first, splits)
    each = tiles.fixed_split_tokens // block
    return first, end, first // each * each, each


def _walk_one_split(
    q_ref: Any,
    layer_ref: Any,
    tables_ref: Any,
    lens_ref: Any,
    k_ref: Any,
    v_ref: Any,
    *refs: Any,
    problem: KeyValues,
    tiles: DecodeTiles,
    splits: int,
    group: int,
) -> None:
    """Attend to the keys of one split; see the module docstring."""
    row, kv_head, split = pl.program_id(0), pl.program_id(1), pl.program_id(2)
    scale_refs, out_refs = (refs[:2], refs[2:]) if problem.quantised else ((), refs)
    length = plt.load(lens_ref.at[row])
    layer = layer_ref[0]
    first, end, base, each = _range_of_splits(length, tiles, splits, problem.window)
    begin = jnp.maximum(base + split * each, first)
    end = jnp.minimum(base + (split + 1) * each, end)

    lanes = lanes_of(group)
    wide = lanes_of(problem.width)
    inside = (lanes < group)[:, None] & (wide < problem.width)[None]
    at_q = (row, (kv_head * group + lanes)[:, None], wide[None])
    q = plt.load(q_ref.at[at_q], mask=inside, other=0.0).astype(problem.dtype)
    refs_of_pages = (tables_ref, k_ref, v_ref, *scale_refs)

    def one_block(index: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        best, total, acc = carry
        keys = index * tiles.block_tokens + lax.iota(jnp.int32, tiles.block_tokens)
        seen = keys < length
        if problem.window is not None:
            seen &= keys >= length - problem.window
        block = problem.load(refs_of_pages, layer, row, kv_head, keys, seen)
        scores = log2_scores(problem, q, block)
        scores = jnp.where(seen[None], scores, NEGATIVE)
        new_best = jnp.maximum(best, scores.max(axis=1))
        weights = jnp.exp2(scores - new_best[:, None])
        shrink = jnp.exp2(best - new_best)
        acc = acc * shrink[:, None] + weighted_values(weights, block)
        return new_best, total * shrink + weights.sum(axis=1), acc

    start = (
        jnp.full(lanes.shape, NEGATIVE, jnp.float32),
        jnp.zeros(lanes.shape, jnp.float32),
        jnp.zeros((lanes.size, wide.size), jnp.float32),
    )
    best, total, acc = lax.fori_loop(begin, jnp.maximum(begin, end), one_block, start)
    if splits == 1:
        out = acc / jnp.where(total == 0, 1.0, total)[:, None]
        plt.store(out_refs[0].at[at_q], out.astype(out_refs[0].dtype), mask=inside)
        return
    head = kv_head * group + lanes
    plt.store(out_refs[0].at[row, split, head[:, None], wide[None]], acc, mask=inside)
    plt.store(out_refs[1].at[row, split, head], best, mask=lanes < group)
    plt.store(out_refs[2].at[row, split, head], total, mask=lanes < group)


def _join(
    acc: jax.Array,  # [B, splits, H, D] float32
    best: jax.Array,  # [B, splits, H] float32
    total: jax.Array,  # [B, splits, H] float32
    context_lens: jax.Array,  # [B]
    tiles: DecodeTiles,
    window: int | None,
    dtype: jnp.dtype,
    interpret: bool,
) -> jax.Array:  # [B, H, D]
    """Combine the partial results of every row, rescaled to their common maximum."""
    rows, splits, heads, width = acc.shape
    run = pl.pallas_call(
        partial(_join_one_head, tiles=tiles, splits=splits, window=window, width=width),
        grid=(rows, heads),
        in_specs=[scratch_spec()] * 4,
        out_specs=scratch_spec(),
        out_shape=jax.ShapeDtypeStruct((rows, heads, width), dtype),
        compiler_params=plt.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name="paged_decode_join",
    )
    return run(acc, best, total, context_lens)


def _join_one_head(
    acc_ref: Any,
    best_ref: Any,
    total_ref: Any,
    lens_ref: Any,
    out_ref: Any,
    *,
    tiles: DecodeTiles,
    splits: int,
    window: int | None,
    width: int,
) -> None:
    row, head = pl.program_id(0), pl.program_id(1)
    first, end, base, each = _range_of_splits(plt.load(lens_ref.at[row]), tiles, splits, window)
    used = pl.cdiv(end - base, jnp.maximum(each, 1))  # 0 for a row without keys
    wide = lax.iota(jnp.int32, padded(width))
    at_once = min(JOIN_AT_ONCE, padded(splits))

    def some(index: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        best, total, acc = carry
        split = index * at_once + lax.iota(jnp.int32, at_once)
        real = split < used
        theirs = plt.load(best_ref.at[row, split, head], mask=real, other=NEGATIVE)
        sums = plt.load(total_ref.at[row, split, head], mask=real, other=0.0)
        values = plt.load(
            acc_ref.at[row, split[:, None], head, wide[None]],
            mask=real[:, None] & (wide < width)[None],
            other=0.0,
        )
        new_best = jnp.maximum(best, theirs.max())
        weights, shrink = jnp.exp2(theirs - new_best), jnp.exp2(best - new_best)
        acc = acc * shrink + (values * weights[:, None]).sum(axis=0)
        return new_best, total * shrink + (sums * weights).sum(), acc

    start = (jnp.float32(NEGATIVE), jnp.float32(0), jnp.zeros(wide.shape, jnp.float32))
    _, total, acc = lax.fori_loop(0, pl.cdiv(used, at_once), some, start)
    out = acc / jnp.where(total == 0, 1.0, total)
    plt.store(out_ref.at[row, head, wide], out.astype(out_ref.dtype), mask=wide < width)
