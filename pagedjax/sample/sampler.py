"""Sample tokens from logits: greedy, temperature, min-p, top-k, top-p, counter-based random draw.

The vocabulary is not sorted: each filter keeps a prefix of the best tokens, found by `ranking`.
The draw looks up one uniform number per row in the cumulative distribution in token-id order. A
row's result depends on that row alone; the batch only decides which unneeded work is skipped.

On CPU, writing an [R, V] array costs several times as much as reading one, so few are written.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from pagedjax.sample.ranking import (
    BLOCK,
    LISTED,
    Prefix,
    all_tokens,
    best,
    in_blocks,
    short_cumsum,
    when,
)
from pagedjax.sample.reach import reach

NO_WEIGHT = 128.0  # exp(-gap) is 0 for a gap of this size


@struct.dataclass
class SamplingArrays:
    """One entry per row of logits. Padding rows have slot M, so their tokens are dropped."""

    slots: jax.Array  # [R]
    num_prompt: jax.Array  # [R]; output position t = number of tokens so far - num_prompt
    seeds: jax.Array  # [R] uint32
    samples: jax.Array  # [R] uint32, index i of the sample among the prompt's `n`
    temperature: jax.Array  # [R]; 0 is greedy
    top_k: jax.Array  # [R]; < 1 or >= V is off
    top_p: jax.Array  # [R]; 1 is off
    min_p: jax.Array  # [R]; 0 is off


def greedy(
    logits: jax.Array,  # [R, V] float32
) -> jax.Array:  # [R]
    """The most likely token of each row, ties broken by the lowest id."""
    blocks = in_blocks(logits, -jnp.inf)
    block = jnp.argmax(blocks.max(axis=-1), axis=-1)
    inside = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    return (block * BLOCK + jnp.argmax(inside, axis=-1)).astype(jnp.int32)


def sample(
    logits: jax.Array,  # [R, V] float32
    arrays: SamplingArrays,
    positions: jax.Array,  # [R], output position t of the token to draw
) -> jax.Array:  # [R]
    """Draw one token per row with the row's own parameters; rows do not affect each other."""
    weights = filtered_weights(logits, arrays)
    drawn = draw(weights, uniform(arrays.seeds, arrays.samples, positions))
    return jnp.where(arrays.temperature == 0, greedy(logits), drawn)


def filtered_weights(
    logits: jax.Array,  # [R, V] float32
    arrays: SamplingArrays,
) -> jax.Array:  # [R, V] float32
    """Unnormalised probabilities after temperature, min-p, top-k and top-p; at most 1 each."""
    return jnp.exp(-filtered_gaps(logits, arrays))


def processed_logits(
    logits: jax.Array,  # [R, V] float32
    arrays: SamplingArrays,
) -> jax.Array:  # [R, V] float32
    """Logits of the distribution that is sampled from: -inf for tokens removed by a filter.

    A greedy row has all of its mass on the chosen token.
    """
    gaps = filtered_gaps(logits, arrays)
    ids = jnp.arange(logits.shape[-1], dtype=jnp.int32)[None]
    certain = jnp.where(ids == greedy(logits)[:, None], 0, jnp.inf)
    return -jnp.where((arrays.temperature == 0)[:, None], certain, gaps)


def filtered_gaps(
    logits: jax.Array,  # [R, V] float32
    arrays: SamplingArrays,
) -> jax.Array:  # [R, V] float32
    """Distance of each token below the best one after temperature; infinity where filtered."""
    rows, vocab = logits.shape
    blocks = in_blocks(logits, -jnp.inf)
    most = blocks.max(axis=-1).max(axis=-1)
    wanted = _uses_top_k(arrays, vocab) | (arrays.top_p < 1)

    def filtered(most: jax.Array) -> Prefix:
        return _top_k_top_p(_gaps(blocks, most, arrays), vocab, arrays)

    prefix = when(wanted.any(), filtered, all_tokens(blocks), most)
    gaps = _gaps(blocks, most, arrays)
    return prefix.restrict(gaps).reshape(rows, -1)[:, :vocab]


def _gaps(
    blocks: jax.Array,  # [R, N, BLOCK], logits
    most: jax.Array,  # [R], the largest logit
    arrays: SamplingArrays,
) -> jax.Array:  # [R, N, BLOCK], >= 0
    """Distances to the best logit divided by the temperature; infinity where min-p filters.

    The maximum is subtracted first, since dividing by a tiny temperature could produce two
    infinities whose difference is NaN. Multiplying by the inverse gives the same bits wherever
    gaps are computed; a division would not, as XLA may turn it into a multiplication.
    """
    tiny = jnp.finfo(jnp.float32).tiny
    inverse = jnp.maximum(1 / jnp.maximum(arrays.temperature, tiny), tiny)[:, None, None]
    below = most[:, None, None] - blocks
    gaps = jnp.where(blocks == most[:, None, None], 0, below * inverse)  # 0 also for inf - inf
    return jnp.where(gaps <= -jnp.log(arrays.min_p)[:, None, None], gaps, jnp.inf)


def _uses_top_k(arrays: SamplingArrays, vocab: int) -> jax.Array:  # [R] bool
    return (arrays.top_k > 0) & (arrays.top_k < vocab)


def _top_k_top_p(
    gaps: jax.Array,  # [R, N, BLOCK], infinity in padding
    vocab: int,
    arrays: SamplingArrays,
) -> Prefix:
    """The k best tokens, cut to the smallest prefix whose share of their mass reaches top_p.

    The prefix has at least one token; ties are broken by the lower id (arXiv 1904.09751).
    """
    use_top_k, use_top_p = _uses_top_k(arrays, vocab), arrays.top_p < 1
    listed = best(gaps, LISTED)
    all_listed = use_top_k & (arrays.top_k <= LISTED)  # decided per row, not per batch

    def filter_once(stage: jax.Array, prefix: Prefix) -> Prefix:
        """Apply top-k (stage 0) or top-p (stage 1); shared code, so it is compiled once."""
        by_count = stage == 0

        def weigh(gaps: jax.Array) -> jax.Array:
            return jnp.where(by_count, (gaps < jnp.inf).astype(jnp.float32), jnp.exp(-gaps))

        def mass(value: jax.Array, last: jax.Array) -> jax.Array:
            return weigh(Prefix(value, last).restrict(gaps)).sum(axis=-1).sum(axis=-1)

        left = jnp.where(prefix.holds(*listed), listed[0], jnp.inf)
        listed_mass = weigh(left).sum(axis=-1)
        active = jnp.where(by_count, use_top_k, use_top_p)
        needed = (active & ~all_listed & ~by_count).any()
        total = when(needed, mass, listed_mass, prefix.value, prefix.last)
        total = jnp.where(all_listed, listed_mass, total)
        # A share that underflows to 0 in float32 must still keep one token.
        share = jnp.maximum(arrays.top_p * total, jnp.finfo(jnp.float32).tiny)
        target = jnp.where(by_count, arrays.top_k.astype(jnp.float32), share)
        most = jnp.where(by_count, jnp.finfo(jnp.float32).max, NO_WEIGHT)
        found = reach(gaps, (left, listed[1]), weigh, target, active, prefix, most)
        return found.shorter(prefix)

    first = jnp.where(use_top_k.any(), 0, 1)
    end = jnp.where(use_top_p.any(), 2, 1)
    return lax.fori_loop(first, end, filter_once, all_tokens(gaps))


def uniform(
    seeds: jax.Array,  # [R] uint32
    samples: jax.Array,  # [R], index i of the sample
    positions: jax.Array,  # [R], output position t
) -> jax.Array:  # [R] float32 in [0, 1)
    """The random number of (seed, i, t): Threefry of the counter t under the key (seed, i).

    The generator is named explicitly, so results do not depend on JAX's default.
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
    """The first token at which the cumulative weight, in id order, exceeds uniform x total."""
    blocks = in_blocks(weights, 0)
    sums, ends = cumulative(blocks)
    target = uniforms * ends[:, -1]
    block = _first_above(ends, sums, target)
    before = jnp.where(block > 0, jnp.take_along_axis(ends, block[:, None] - 1, 1)[:, 0], 0)
    inside = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    token = _first_above(short_cumsum(inside), inside, target - before)
    return (block * BLOCK + token).astype(jnp.int32)


def cumulative(
    blocks: jax.Array,  # [R, N, BLOCK]
) -> tuple[jax.Array, jax.Array]:  # [R, N] each
    """The sum of each block, and the cumulative sum up to its end.

    The two-level summation, within blocks and then over blocks, makes the rounding error grow
    with the square root of V and not with V.
    """
    sums = blocks.sum(axis=-1)
    return sums, jnp.cumsum(sums, axis=-1)


def _first_above(ends: jax.Array, sizes: jax.Array, target: jax.Array) -> jax.Array:
    """First index with ends > target and size > 0; the last one with size > 0 if rounding leaves
    none."""
    exists = sizes > 0
    last = ends.shape[-1] - 1 - jnp.argmax(exists[:, ::-1], axis=-1)
    hit = exists & (ends > target[:, None])
    return jnp.where(hit.any(axis=-1), jnp.argmax(hit, axis=-1), last).astype(jnp.int32)
