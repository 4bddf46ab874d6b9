"""Attention over paged keys in plain XLA, for any backend: default on CPU, baseline on GPU.

Attention loops over the block tables in groups of pages with an online softmax (arXiv 1805.02867),
so temporaries are small and the trip count follows the longest context without recompilation.
Groups hold a fixed number of tokens at absolute positions, so a row's result does not depend on
the other rows. Iterations past a row's context, or before its window, do not change its bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.formats import decode, format_of

# NEGATIVE is the score of masked keys, LEAST the initial maximum. exp(NEGATIVE - LEAST) is 0, and
# both are finite, so a query whose keys are all masked returns zeros and not NaN.
NEGATIVE, LEAST = -1e30, -5e29
GROUP_TOKENS = 128  # keys per loop iteration; more would not fit the CPU's cache
# LLVM's optimization level on CPU. The default, 3, takes 1.5 times as long to compile, and its
# loops, which gather pages and compute exponentials, are slower: a step of 64 rows over 256 keys
# took 1.2 times as long.
CPU_OPTIONS = {"xla_backend_optimization_level": 1}


# (q [B, K, M, D], keys, tables, query_positions, context_lens) -> [B, K, M, D] float32
Attend = Callable[..., jax.Array]


class Keys(NamedTuple):
    """The keys and values that a layer's queries read."""

    k_pool: jax.Array  # [L, N, K, T, D]
    v_pool: jax.Array  # [L, N, K, T, D]
    layer: jax.Array  # scalar
    k_scales: jax.Array | None  # [L, N, K, T]
    v_scales: jax.Array | None  # [L, N, K, T]


def per_platform(op: Callable[..., jax.Array], attend: Attend, *args: Any) -> jax.Array:
    """Run `op(attend, *args)` in the form that is fastest on the platform that executes it.

    On CPU `attend` gets float32 queries: XLA's CPU code copies gathered 16-bit elements one by
    one unless it also converts them, and with the conversion decode and prefill take 0.75 of the
    time (measured without AVX-512; with it, 16-bit products might be faster in prefill).

    On CPU all layers also share one compiled copy of `op`. XLA inlines calls before all other
    passes and then compiles one copy per layer, unless a call is marked to be inlined late. Such a
    call copies every argument that it writes, so `op` must only read the pools.
    """

    def in_float32(q: jax.Array, *others: Any) -> jax.Array:
        return attend(q.astype(jnp.float32), *others)

    on_cpu = jax.jit(partial(op, in_float32), inline=jax.Inline.XLA_LATE)
    return lax.platform_dependent(*args, cpu=on_cpu, default=partial(op, attend))


def walk(
    q: jax.Array,  # [B, K, M, D]
    keys: Keys,
    tables: jax.Array,  # [B, P], P a multiple of the pages per group
    query_positions: jax.Array,  # [B, M or M / G], below context_lens; -1 for padding
    context_lens: jax.Array,  # [B]; keys past it are never used and may be garbage
    *,
    pages: int,  # per group
    scale: float,
    window: int | None,
    soft_cap: float | None,
) -> jax.Array:  # [B, K, M, D] float32
    """Attend with an online softmax over each row's pages, in groups up to the longest context."""
    k_pool, v_pool, layer, k_scales, v_scales = keys
    span = pages * k_pool.shape[3]
    heads_per_query = q.shape[2] // query_positions.shape[1]
    positions = jnp.repeat(query_positions, heads_per_query, axis=1)  # [B, M]
    oldest = None if window is None else _oldest_keys(query_positions, context_lens, window)

    def one_group(index: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        best, total, acc = carry
        page_ids = slice_rows(tables, index * pages, pages, axis=1)
        k = _numbers(gather(k_pool, layer, page_ids), q.dtype)
        v = gather(v_pool, layer, page_ids)
        found = None if v_scales is None else gather_scales(v_scales, layer, page_ids)
        scores = _batched(q, k, transpose=True) * scale
        if k_scales is not None:
            scores = scores * gather_scales(k_scales, layer, page_ids)
        if soft_cap is not None:
            scores = soft_cap * jnp.tanh(scores / soft_cap)
        known, seen = masks(index)
        scores = jnp.where(seen, scores, NEGATIVE)
        # Masking the scores is not enough: 0 x NaN from an unused page would be NaN.
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
    groups = divide(context_lens.max() + span - 1, span)
    first = jnp.int32(0) if oldest is None else divide(oldest.min(), span)
    _, total, acc = lax.fori_loop(first, groups, one_group, carry)
    out = acc / jnp.where(total == 0, 1, total)[..., None]
    return jnp.where((context_lens > 0)[:, None, None, None], out, 0)


def _oldest_keys(
    query_positions: jax.Array,  # [B, queries]
    context_lens: jax.Array,  # [B]
    window: int,
) -> jax.Array:  # [B]
    """The first key that any query of the row sees; past every context if it has no queries."""
    real = (query_positions >= 0) & (query_positions < context_lens[:, None])
    positions = jnp.where(real, query_positions, jnp.iinfo(jnp.int32).max)
    return jnp.maximum(positions.min(axis=1) - (window - 1), 0)


def _batched(left: jax.Array, right: jax.Array, *, transpose: bool) -> jax.Array:
    """[B,K,M,X] x [B,K,X,Y], or x [B,K,Y,X] transposed; one batch axis is fastest on CPU."""
    batch, heads = left.shape[:2]
    product = lax.dot_general(
        left.reshape(batch * heads, *left.shape[2:]),
        right.reshape(batch * heads, *right.shape[2:]),
        (((2,), (2 if transpose else 1,)), ((0,), (0,))),
        preferred_element_type=jnp.float32,
        # By default a GPU rounds float32 operands to TF32, with an error of 3e-4.
        precision=lax.Precision.HIGHEST if left.dtype == jnp.float32 else None,
    )
    return product.reshape(batch, heads, *product.shape[1:])


def gather(pool: jax.Array, layer: jax.Array, page_ids: jax.Array) -> jax.Array:
    """Gather the pages [B, pages] of one layer as [B, K, pages * T, D].

    The pool is viewed as rows that each hold one kv head's page, so one take copies contiguous
    memory into the layout of the products. A page id of N (padding) or a garbage id is clipped or
    reads another page; the caller masks the result.
    """
    layers, blocks, kv_heads, size, width = pool.shape
    heads = jnp.arange(kv_heads, dtype=jnp.int32)[None, :, None]
    rows = (layer * blocks + page_ids)[:, None] * kv_heads + heads  # [B, K, pages]
    flat = pool.reshape(layers * blocks * kv_heads, size * width)
    taken = jnp.take(flat, rows, axis=0, mode="clip")
    return taken.reshape(page_ids.shape[0], kv_heads, page_ids.shape[1] * size, width)


def gather_scales(
    scales: jax.Array,  # [L, N, K, T]
    layer: jax.Array,
    page_ids: jax.Array,  # [B, pages]
) -> jax.Array:  # [B, K, 1, pages * T]
    """`gather` for scales, in a shape that multiplies scores or weights."""
    found = gather(scales[..., None], layer, page_ids)[:, :, None, :, 0]
    return found.astype(jnp.float32)


def _numbers(stored: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Convert a pool's elements to `dtype`, without their scales."""
    return stored.astype(dtype) if format_of(stored) is None else decode(stored, dtype)


def pages_per_group(pool: jax.Array) -> int:
    """Pages per group of GROUP_TOKENS keys, at least one."""
    return max(1, GROUP_TOKENS // pool.shape[3])


def whole_groups(tables: jax.Array, pool: jax.Array, pages: int) -> jax.Array:
    """Pad the tables with N to a whole number of page groups."""
    missing = -tables.shape[1] % pages
    return jnp.pad(tables, ((0, 0), (0, missing)), constant_values=pool.shape[1])


# The indices below are never negative, or their results are unused. Declaring this lets XLA omit
# the code for negative indices, which would otherwise run in every layer.


def take_rows(x: jax.Array, indices: jax.Array) -> jax.Array:
    """Rows of `x` at non-negative indices."""
    return jnp.take(x, indices, axis=0, mode="clip")


def slice_rows(x: jax.Array, start: jax.Array, size: int, axis: int = 0) -> jax.Array:
    """`size` entries of an axis from the non-negative index `start`."""
    return lax.dynamic_slice_in_dim(x, start, size, axis, allow_negative_indices=False)


def put_rows(x: jax.Array, rows: jax.Array, start: jax.Array) -> jax.Array:
    """`x` with `rows` written at the non-negative index `start`."""
    return lax.dynamic_update_slice_in_dim(x, rows, start, 0, allow_negative_indices=False)


def divide(x: jax.Array, divisor: int) -> jax.Array:
    """Integer division of non-negative numbers."""
    return lax.div(x.astype(jnp.uint32), jnp.uint32(divisor)).astype(jnp.int32)
