"""Paged decode attention for Hopper, in Mosaic GPU: TMA page copies and wgmma.

One CTA of one warpgroup processes a (row, kv head, split). It loops over its split of the row's
context in tiles of 64 tokens, independent of the page size: a tile is one box of a large page or
several small pages, copied into a ring buffer in shared memory. The G query heads of a kv head are
the first of wgmma's 64 rows; the results of the other rows are never stored. Each split returns a
normalised output and its log-sum-exp, and these are combined in float32. At D=256 the output does
not fit one CTA's registers: two CTAs compute half of V's columns each, and both read K.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

NEGATIVE = -1e30  # finite, so that splits without keys get weight 0 and not NaN
BLOCK = 64  # tokens per loop iteration
ROWS = 64  # M of a wgmma
TILE = 64  # columns per tile in shared memory and in the output; a 128-byte swizzle
COLUMNS = 128  # most columns of V and of the output that one CTA processes
WIDTHS = (64, 128, 256)
SIZES = (8, 16, 32, 64, 128, 256)
DEFAULT_STAGES = {64: 4, 128: 2, 256: 3}
MOST_STAGES = {64: 12, 128: 5, 256: 3}  # a CTA has at most 227 KiB of shared memory
DTYPES = ("bfloat16", "float16")
FULL_GPU = 2 * 132  # CTAs: two on each SM of an H200
MIN_SPLIT = 256  # tokens; combining shorter splits costs more than they gain


@dataclass(frozen=True)
class _Plan:
    """The static parameters of the kernel."""

    rows: int
    kv_heads: int
    group: int  # query heads per kv head
    width: int  # D
    size: int  # T
    splits: int
    stages: int  # tiles of K, and of V, in the ring buffers
    scale: float
    window: int | None
    soft_cap: float | None

    @property
    def box(self) -> int:
        """Tokens per TMA copy: a whole page, or BLOCK tokens of a larger page."""
        return min(self.size, BLOCK)

    @property
    def columns(self) -> int:
        """Columns of V and of the output that one CTA processes."""
        return min(self.width, COLUMNS)

    @property
    def padded_group(self) -> int:
        """G rounded up to the 8 rows of a shared memory tile, which is copied whole."""
        return -(-self.group // 8) * 8


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
    k_scales: jax.Array | None = None,
    v_scales: jax.Array | None = None,
    splits: int | None = None,
    stages: int | None = None,
    interpret: Any = False,  # or plgpu.InterpretGPUParams
) -> jax.Array:  # [B, H, D]
    """One query per row, at the last position of its context; see `reference.paged_decode`.

    splits: CTAs per row and kv head; by default enough for two CTAs per SM of an H200.
    stages: tiles in the ring buffer; by default as many as allow two CTAs per SM, or one at D=256.
    """
    _check_arrays(q, k_pool, v_pool, k_scales, v_scales)
    _check_options(window, soft_cap, splits, stages, MOST_STAGES[q.shape[2]])
    rows, heads, width = q.shape
    kv_heads, size = k_pool.shape[2:4]
    plan = _Plan(
        rows=rows, kv_heads=kv_heads, group=heads // kv_heads, width=width, size=size,
        splits=splits or _default_splits(rows * kv_heads, block_tables.shape[1] * size, window),
        stages=stages or DEFAULT_STAGES[width],
        scale=scale, window=window, soft_cap=soft_cap,
    )  # fmt: skip
    grouped = q.reshape(rows, kv_heads, plan.group, width)
    grouped = jnp.pad(grouped, ((0, 0), (0, 0), (0, plan.padded_group - plan.group), (0, 0)))

    def paged_decode(*refs: Any) -> None:  # the function's name becomes the kernel's name
        _kernel(*refs, plan=plan)

    kernel = plgpu.kernel(
        paged_decode,
        out_type=_outputs(plan),
        scratch_types=_scratch(plan, q.dtype),
        grid=(rows, kv_heads, plan.splits * (width // plan.columns)),
        grid_names=("row", "head", "part"),
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=plgpu.InterpretGPUParams() if interpret is True else interpret or None,
    )
    layer = jnp.reshape(layer, (1,)).astype(jnp.int32)
    out, log_sums = kernel(grouped, k_pool, v_pool, layer, block_tables, context_lens)
    return _combine(out, log_sums[..., : plan.group]).reshape(q.shape).astype(q.dtype)


def _outputs(plan: _Plan) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Each split's attention output for the G heads, and base-2 log-sum-exp for all 64 rows."""
    grid = (plan.rows, plan.kv_heads, plan.splits)
    return (
        jax.ShapeDtypeStruct((*grid, plan.group, plan.width), jnp.float32),
        jax.ShapeDtypeStruct((*grid, ROWS), jnp.float32),
    )


def _scratch(plan: _Plan, dtype: jnp.dtype) -> tuple[Any, ...]:
    """Shared memory for queries, rings of K and V, weights and an output tile; and barriers."""
    tiling = plgpu.TilingTransform((8, TILE))  # type: ignore[abstract]
    swizzled = (tiling, plgpu.SwizzleTransform(2 * TILE))  # type: ignore[abstract]
    k_ring, v_ring = (
        plgpu.SMEM((plan.stages, BLOCK, columns), dtype, transforms=swizzled)
        for columns in (plan.width, plan.columns)
    )
    filled = plgpu.Barrier(num_arrivals=BLOCK // plan.box, num_barriers=plan.stages)
    return (
        plgpu.SMEM((ROWS, plan.width), dtype, transforms=swizzled),
        k_ring, v_ring,
        plgpu.SMEM((ROWS, BLOCK), dtype, transforms=swizzled),
        plgpu.SMEM((ROWS, TILE), jnp.float32),
        plgpu.Barrier(), filled, filled,
    )  # fmt: skip


def _kernel(
    q_ref, k_ref, v_ref, layer_ref, tables_ref, lens_ref, out_ref, log_sums_ref,
    q_tile, k_ring, v_ring, weights, out_tile, q_filled, k_filled, v_filled,
    *, plan: _Plan,
):  # fmt: skip
    row, head, part = lax.axis_index("row"), lax.axis_index("head"), lax.axis_index("part")
    parts = plan.width // plan.columns
    split, column = lax.div(part, parts), lax.rem(part, parts) * plan.columns
    plgpu.copy_gmem_to_smem(
        q_ref.at[row, head], q_tile.at[pl.ds(0, plan.padded_group)], q_filled
    )  # later rows hold garbage, which does not affect other rows
    layer, length = layer_ref[0], lens_ref[row]
    oldest, first, blocks = _share(length, split, plan)
    locate = partial(_locate, tables_ref, row, first=first, length=length, plan=plan)
    fetch_k = partial(_fetch, k_ref, layer, head, pl.ds(0, plan.width), plan)
    fetch_v = partial(_fetch, v_ref, layer, head, pl.ds(column, plan.columns), plan)
    for stage in range(plan.stages):

        @pl.when(stage < blocks)
        def _(stage=stage):
            boxes = locate(stage)
            fetch_k(boxes, k_ring.at[stage], k_filled.at[stage])
            fetch_v(boxes, v_ring.at[stage], v_filled.at[stage])

    def one_block(index, carry):
        best, total, acc = carry
        slot, refill = lax.rem(index, plan.stages), index + plan.stages
        boxes = locate(refill)  # early, as the block table is in global memory
        start = first + index * BLOCK
        plgpu.barrier_wait(k_filled.at[slot])
        scores = _product(q_tile, k_ring.at[slot].T, (ROWS, BLOCK))
        pl.when(refill < blocks)(lambda: fetch_k(boxes, k_ring.at[slot], k_filled.at[slot]))
        scores = _masked(_in_base_2(scores, plan), start, oldest, length)
        new_best = jnp.maximum(best, scores.max(axis=1))
        shares = jnp.exp2(scores - lax.broadcast_in_dim(new_best, scores.shape, [0]))
        shrink = jnp.exp2(best - new_best)
        total = total * shrink + shares.sum(axis=1)  # frees the registers of `shares`
        weights[...] = shares.astype(weights.dtype)
        plgpu.commit_smem()
        plgpu.barrier_wait(v_filled.at[slot])
        _zero_unseen_values(v_ring.at[slot], start, oldest, length, plan)
        acc = _accumulated(acc, shrink, weights, v_ring.at[slot])
        pl.when(refill < blocks)(lambda: fetch_v(boxes, v_ring.at[slot], v_filled.at[slot]))
        return new_best, total, acc

    plgpu.barrier_wait(q_filled)
    best, total, acc = lax.fori_loop(0, blocks, one_block, _start(plan))

    @pl.when(column == 0)
    def _():
        log_sum = jnp.where(total > 0, best + jnp.log2(total), NEGATIVE)
        log_sums_ref[row, head, split] = log_sum

    _write(acc, total, out_tile, out_ref.at[row, head, split], column, plan)


def _share(length, split, plan: _Plan):
    """The oldest key of the row's window, and the split's first token and number of tiles.

    Splits get equal numbers of whole tiles, except the last ones. The row's first tile begins with
    the box of the oldest key; earlier keys are not read.
    """
    oldest = jnp.int32(0) if plan.window is None else jnp.maximum(length - plan.window, 0)
    first = lax.div(oldest, plan.box) * plan.box
    blocks = lax.div(length - first + (BLOCK - 1), BLOCK)
    each = lax.div(blocks + (plan.splits - 1), plan.splits)
    return oldest, first + split * each * BLOCK, jnp.clip(blocks - split * each, 0, each)


def _locate(tables_ref, row, index, *, first, length, plan: _Plan) -> list[tuple[Any, Any]]:
    """The page, and the token offset in it, of each box of a tile of the split.

    Boxes past the context repeat its last one, since the block table holds garbage there. So every
    tile has the same number of copies, and repeated copies of a box are cheap.
    """
    found = []
    for box in range(BLOCK // plan.box):
        token = jnp.minimum(first + index * BLOCK + box * plan.box, length - 1)
        page = tables_ref[row, lax.div(token, plan.size)]
        found.append((page, lax.div(lax.rem(token, plan.size), plan.box) * plan.box))
    return found


def _fetch(pool_ref, layer, head, columns, plan: _Plan, boxes, block_ref, filled) -> None:
    """Start the copies of a tile of one kv head's keys or values, one per box."""
    for index, (page, token) in enumerate(boxes):
        plgpu.copy_gmem_to_smem(
            pool_ref.at[layer, page, head, pl.ds(token, plan.box), columns],
            block_ref.at[pl.ds(index * plan.box, plan.box)],
            filled,
        )


def _product(left_ref, right_ref, shape: tuple[int, int]):
    def run(acc):
        plgpu.wgmma(acc, left_ref, right_ref)
        return acc[...]

    return pl.run_scoped(run, plgpu.ACC(shape, jnp.float32))


def _in_base_2(scores, plan: _Plan):
    """Scale, cap and multiply by log2(e), so that exp2 of the result is exp of the score.

    tanh(x) is computed as 1 - 2 / (1 + exp(2x)), with an error of 1e-6 of the cap: the hardware's
    tanh has only 11 bits.
    """
    log2_e = math.log2(math.e)
    if plan.soft_cap is None:
        return scores * (plan.scale * log2_e)
    grown = jnp.exp2(scores * (2 * plan.scale * log2_e / plan.soft_cap))
    return (1.0 - 2.0 / (1.0 + grown)) * (plan.soft_cap * log2_e)


def _masked(scores, start, oldest, length):
    tokens = start + _iota(scores.shape, 1)
    return jnp.where((tokens >= oldest) & (tokens < length), scores, NEGATIVE)


def _zero_unseen_values(v_ref, start, oldest, length, plan: _Plan) -> None:
    """Zero the rows of V outside the window and context, since 0 x NaN would be NaN."""

    @pl.when((start < oldest) | (start + BLOCK > length))
    def _():
        for column in range(0, plan.columns, TILE):
            tile = v_ref.at[:, pl.ds(column, TILE)]
            tokens = start + _iota((BLOCK, TILE), 0)
            own = (tokens >= oldest) & (tokens < length)
            tile[...] = jnp.where(own, tile[...], jnp.zeros((), tile.dtype))
        plgpu.commit_smem()


def _accumulated(acc, shrink, weights, v_ref):
    """The output tiles [64, TILE] after accumulating one more tile of tokens."""
    grown = []
    for index, tile in enumerate(acc):
        columns = v_ref.at[:, pl.ds(index * TILE, TILE)]
        tile = tile * lax.broadcast_in_dim(shrink, tile.shape, [0])
        grown.append(tile + _product(weights, columns, (ROWS, TILE)))
    return tuple(grown)


def _write(acc, total, tile_ref, out_ref, column, plan: _Plan) -> None:
    """Store the rows of the G heads, tile by tile through shared memory."""
    share = 1.0 / jnp.where(total > 0, total, 1.0)
    for index, tile in enumerate(acc):
        tile_ref[...] = tile * lax.broadcast_in_dim(share, tile.shape, [0])
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(
            tile_ref.at[pl.ds(0, plan.group)],
            out_ref.at[:, pl.ds(column + index * TILE, TILE)],
        )
        plgpu.wait_smem_to_gmem(0)


def _start(plan: _Plan):
    def full(shape, value, layout):
        return plgpu.layout_cast(jnp.full(shape, value, jnp.float32), layout)

    return (
        full((ROWS,), NEGATIVE, plgpu.Layout.WGMMA.reduce(1)),
        full((ROWS,), 0, plgpu.Layout.WGMMA.reduce(1)),
        tuple(full((ROWS, TILE), 0, plgpu.Layout.WGMMA) for _ in range(plan.columns // TILE)),
    )


def _iota(shape: tuple[int, int], axis: int):
    return plgpu.broadcasted_iota(jnp.int32, shape, axis, layout=plgpu.Layout.WGMMA)


def _combine(
    out: jax.Array,  # [B, K, splits, G, D]
    log_sums: jax.Array,  # [B, K, splits, G]
) -> jax.Array:  # [B, K, G, D]
    """The mean of the splits, weighted by their sums; zeros where all splits are empty."""
    if out.shape[2] == 1:
        return out[:, :, 0]
    shares = jnp.exp2(log_sums - log_sums.max(axis=2, keepdims=True))
    return (out * shares[..., None]).sum(axis=2) / shares.sum(axis=2)[..., None]


def _default_splits(pairs: int, tokens: int, window: int | None) -> int:
    """The smallest power of two that fills the GPU, limited to splits of MIN_SPLIT tokens."""
    most = max(1, (tokens if window is None else min(tokens, window)) // MIN_SPLIT)
    splits = 1
    while splits * 2 <= most and splits * pairs < FULL_GPU:
        splits *= 2
    return splits


def _check_arrays(q, k_pool, v_pool, k_scales, v_scales) -> None:
    if k_scales is not None or v_scales is not None or k_pool.dtype.itemsize == 1:
        raise NotImplementedError(
            f"pools of {k_pool.dtype} with scales; supported: {', '.join(DTYPES)} without"
        )
    if not q.dtype == k_pool.dtype == v_pool.dtype or q.dtype not in DTYPES:
        raise NotImplementedError(
            f"queries of {q.dtype} on pools of {k_pool.dtype} and {v_pool.dtype}; "
            f"supported: the same dtype for all, one of {', '.join(DTYPES)}"
        )
    heads, width = q.shape[1:]
    kv_heads, size = k_pool.shape[2:4]
    if width not in WIDTHS:
        raise NotImplementedError(f"head width {width}; supported: {WIDTHS}")
    if size not in SIZES:
        raise NotImplementedError(f"pages of {size} tokens; supported: {SIZES}")
    if v_pool.shape != k_pool.shape or k_pool.shape[4] != width:
        raise ValueError(
            f"pools of shapes {k_pool.shape} and {v_pool.shape} for queries of {q.shape}; "
            "supported: two pools [L, N, K, T, D] for queries [B, H, D]"
        )
    if heads % kv_heads or heads // kv_heads > ROWS:
        raise ValueError(
            f"{heads} query heads on {kv_heads} kv heads; "
            f"supported: 1 to {ROWS} query heads on each"
        )


def _check_options(
    window: int | None,
    soft_cap: float | None,
    splits: int | None,
    stages: int | None,
    most_stages: int,
) -> None:
    for name, value in {"window": window, "splits": splits}.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} {value}; supported: 1 or more")
    if stages is not None and not 1 <= stages <= most_stages:
        raise ValueError(f"stages {stages}; supported at this head width: 1 to {most_stages}")
    if soft_cap is not None and not 0 < soft_cap < math.inf:
        raise ValueError(f"soft_cap {soft_cap}; supported: positive and finite")
