"""From logits to tokens: greedy, temperature, min-p, top-k, top-p, with a counter-based draw.

No sort of the vocabulary. A filter keeps the tokens whose value is at least a threshold, which is
found by bisection over the ordered bit patterns of float32, exactly; among equal values at the
threshold the lower ids are kept first, by bisection over ids. The draw is one uniform number per
row, looked up in the cumulative distribution in the order of token ids.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

DRAW_BLOCK = 128  # tokens per partial sum of the cumulative distribution


@struct.dataclass
class SamplingArrays:
    """One entry per row of logits. `slots` of padding rows are M, so their tokens are dropped."""

    slots: jax.Array  # [R]
    num_prompt: jax.Array  # [R]; output position t = tokens so far - num_prompt
    seeds: jax.Array  # [R] uint32
    samples: jax.Array  # [R] uint32, index i among the samples of the prompt
    temperature: jax.Array  # [R]; 0 is greedy
    top_k: jax.Array  # [R]; < 1 or >= V is off
    top_p: jax.Array  # [R]; 1 is off
    min_p: jax.Array  # [R]; 0 is off


def greedy(
    logits: jax.Array,  # [R, V] float32
) -> jax.Array:  # [R]
    """The most likely token, the lowest id on ties."""
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)


def sample(
    logits: jax.Array,  # [R, V] float32
    arrays: SamplingArrays,
    positions: jax.Array,  # [R], output position t of the token to draw
) -> jax.Array:  # [R]
    """A token per row by its own parameters; rows do not influence each other."""
    weights = filtered_weights(logits, arrays)
    drawn = draw(weights, uniform(arrays.seeds, arrays.samples, positions))
    return jnp.where(arrays.temperature == 0, greedy(logits), drawn)


def filtered_weights(
    logits: jax.Array,  # [R, V] float32
    arrays: SamplingArrays,
) -> jax.Array:  # [R, V] float32
    """Unnormalised probabilities after temperature, min-p, top-k and top-p; at most 1 each.

    The maximum is subtracted before the division, so that a tiny temperature cannot make two
    infinities of which the difference is NaN.
    """
    temperature = jnp.maximum(arrays.temperature, jnp.finfo(jnp.float32).tiny)[:, None]
    gap = (logits.max(axis=-1, keepdims=True) - logits) / temperature  # >= 0
    gap = jnp.where(jnp.exp(-gap) >= arrays.min_p[:, None], gap, jnp.inf)
    use_top_k = (arrays.top_k > 0) & (arrays.top_k < logits.shape[-1])
    gap = lax.cond(
        use_top_k.any(),
        lambda: jnp.where(top_k_mask(gap, arrays.top_k) | ~use_top_k[:, None], gap, jnp.inf),
        lambda: gap,
    )
    weights = jnp.exp(-gap)
    use_top_p = arrays.top_p < 1
    return lax.cond(
        use_top_p.any(),
        lambda: jnp.where(top_p_mask(weights, arrays.top_p) | ~use_top_p[:, None], weights, 0),
        lambda: weights,
    )


def top_k_mask(
    gap: jax.Array,  # [R, V], >= 0, smaller is better
    top_k: jax.Array,  # [R], >= 1
) -> jax.Array:  # [R, V] bool
    """The k smallest gaps; exactly k, lower ids first among equals."""

    def fewer_below(bound: jax.Array) -> jax.Array:
        return (gap < bound[:, None]).sum(axis=-1, dtype=jnp.int32) < top_k

    bound = _largest_float(fewer_below, gap.shape[0])[:, None]
    better = gap < bound
    return better | _first_true(gap == bound, top_k - better.sum(axis=-1, dtype=jnp.int32))


def top_p_mask(
    weights: jax.Array,  # [R, V], >= 0
    top_p: jax.Array,  # [R], in (0, 1]
) -> jax.Array:  # [R, V] bool
    """The smallest set of largest weights whose share of the sum reaches top_p.

    At least one; among equals lower ids come first (arXiv 1904.09751).
    """
    # A share so small that float32 rounds it to nothing still wants one token.
    wanted = jnp.maximum(top_p * weights.sum(axis=-1), jnp.finfo(jnp.float32).tiny)

    def enough(least: jax.Array) -> jax.Array:
        return jnp.where(weights >= least[:, None], weights, 0).sum(axis=-1) >= wanted

    least = _largest_float(enough, weights.shape[0])
    better = weights > least[:, None]
    missing = wanted - jnp.where(better, weights, 0).sum(axis=-1)
    room = jnp.ceil(missing / jnp.maximum(least, jnp.finfo(jnp.float32).tiny))
    room = jnp.clip(room, 1, weights.shape[-1]).astype(jnp.int32)
    return better | _first_true(weights == least[:, None], room)


def uniform(
    seeds: jax.Array,  # [R] uint32
    samples: jax.Array,  # [R], index i of the sample
    positions: jax.Array,  # [R], output position t
) -> jax.Array:  # [R] float32 in [0, 1)
    """The random number of (seed, i, t): threefry of the counter t under the key (seed, i).

    The generator is named, so a changed default of JAX changes no result.
    """

    def one(seed: jax.Array, sample: jax.Array, position: jax.Array) -> jax.Array:
        words = jnp.stack([seed.astype(jnp.uint32), sample.astype(jnp.uint32)])
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        return jax.random.key_data(jax.random.fold_in(key, position))[0]

    bits = jax.vmap(one)(seeds, samples, positions)
    return (bits >> 8).astype(jnp.float32) * jnp.float32(2**-24)


def draw(
    weights: jax.Array,  # [R, V], >= 0, not all zero
    uniforms: jax.Array,  # [R] in [0, 1)
) -> jax.Array:  # [R]
    """The first token at which the cumulative weight, in id order, exceeds uniform x total.

    Sums are taken in two levels, within blocks and over them, so their error grows with the
    square root of V and not with V.
    """
    rows, vocab = weights.shape
    padded = jnp.pad(weights, ((0, 0), (0, -vocab % DRAW_BLOCK))).reshape(rows, -1, DRAW_BLOCK)
    sums = padded.sum(axis=-1)
    ends = jnp.cumsum(sums, axis=-1)
    target = uniforms * ends[:, -1]
    block = _first_above(ends, sums, target)
    before = jnp.where(block > 0, jnp.take_along_axis(ends, block[:, None] - 1, 1)[:, 0], 0)
    inside = jnp.take_along_axis(padded, block[:, None, None], axis=1)[:, 0]
    token = _first_above(jnp.cumsum(inside, axis=-1), inside, target - before)
    return (block * DRAW_BLOCK + token).astype(jnp.int32)


def _first_above(ends: jax.Array, sizes: jax.Array, target: jax.Array) -> jax.Array:
    """First index with ends > target and a size above 0; the last one above 0 if rounding
    leaves none."""
    exists = sizes > 0
    last = ends.shape[-1] - 1 - jnp.argmax(exists[:, ::-1], axis=-1)
    hit = exists & (ends > target[:, None])
    return jnp.where(hit.any(axis=-1), jnp.argmax(hit, axis=-1), last).astype(jnp.int32)


def _first_true(mask: jax.Array, count: jax.Array) -> jax.Array:
    """The first `count` [R] true entries of each row of `mask` [R, V]."""
    ids = jnp.arange(mask.shape[-1], dtype=jnp.uint32)[None]

    def first_ids() -> jax.Array:
        def fits(end: jax.Array) -> jax.Array:
            return (mask & (ids < end[:, None])).sum(axis=-1, dtype=jnp.int32) <= count

        end = _largest(fits, mask.shape[0], bits=mask.shape[-1].bit_length())
        return mask & (ids < end[:, None])

    # More equals than room are rare; without them there is no need to look at ids.
    crowded = (mask.sum(axis=-1, dtype=jnp.int32) > count).any()
    return lax.cond(crowded, first_ids, lambda: mask)


def _largest_float(holds: Callable[[jax.Array], jax.Array], rows: int) -> jax.Array:
    """Per row the largest non-negative float32 for which a monotone predicate holds.

    Non-negative floats, infinity included, are ordered like their bit patterns; the predicate is
    true at 0 and stays false once it is false.
    """
    infinity = jnp.uint32(0x7F800000)

    def holds_for_bits(bits: jax.Array) -> jax.Array:
        return (bits <= infinity) & holds(lax.bitcast_convert_type(bits, jnp.float32))

    return lax.bitcast_convert_type(_largest(holds_for_bits, rows, bits=31), jnp.float32)


def _largest(holds: Callable[[jax.Array], jax.Array], rows: int, *, bits: int) -> jax.Array:
    """Per row the largest uint32 below 2**bits for which a monotone predicate holds."""

    def one_bit(index: jax.Array, found: jax.Array) -> jax.Array:
        tried = found | (jnp.uint32(1) << (bits - 1 - index).astype(jnp.uint32))
        return jnp.where(holds(tried), tried, found)

    return lax.fori_loop(0, bits, one_bit, jnp.zeros(rows, jnp.uint32))
