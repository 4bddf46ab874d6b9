"""Changes to the logits before the temperature is applied: penalties, biases, masks.

Scalar parameters are arrays with one entry per row; parameters of vocabulary size are tables
indexed by slot. A part that no row of the batch uses is skipped at run time, so one program
serves every mix of parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from pagedjax.sample.sampler import SamplingArrays

# Entries of `Tables.edits` that are masks, not biases. If masking would leave a row no token,
# FORBIDDEN tokens stay drawable, and if there are none, NOT_ALLOWED tokens too.
FORBIDDEN, NOT_ALLOWED = -1e38, -float("inf")
CHUNK = 512  # positions of the history counted per iteration

Processor = Callable[[jax.Array], jax.Array]  # [R, V] -> [R, V]


@struct.dataclass
class Adjustments:
    """One entry per row of logits."""

    repetition: jax.Array  # [R] float32; 1 is off
    presence: jax.Array  # [R] float32; 0 is off
    frequency: jax.Array  # [R] float32; 0 is off
    edited: jax.Array  # [R] bool, whether the row's slot has an entry in `Tables.edits`
    logprobs: jax.Array  # [R] bool, whether the row's request asks for logprobs


@struct.dataclass
class Tables:
    """Tables indexed by slot, for M slots."""

    history: jax.Array  # [M, X] int32, the tokens so far; garbage past the slot's length
    edits: jax.Array  # [M, V] float32, added to the logits; or FORBIDDEN, or NOT_ALLOWED
    extra: dict[str, jax.Array] = struct.field(default_factory=dict)  # each [M, ...], user data


def adjust(
    logits: jax.Array,  # [R, V] float32
    arrays: SamplingArrays,
    adjustments: Adjustments,
    tables: Tables,
    lengths: jax.Array,  # [R], tokens so far in the row's slot, prompt and output
    processor: Processor | None = None,
) -> jax.Array:  # [R, V] float32
    """Apply penalties, then biases, then the processor, then set forbidden tokens to -inf.

    Rows that use none of these keep their exact bits. If every other token of a row is not
    allowed, its forbidden tokens are kept, since an empty distribution cannot be sampled.
    """
    logits = penalize(logits, arrays, adjustments, tables.history, lengths)
    edited = adjustments.edited[:, None]

    def edits() -> jax.Array:  # [R, V]
        return jnp.take(tables.edits, arrays.slots, axis=0, mode="clip")

    def biased() -> jax.Array:
        found = edits()
        return jnp.where(edited & (found > FORBIDDEN), logits + found, logits)

    def allowed() -> jax.Array:
        found, kept = edits(), logits
        for limit in (NOT_ALLOWED, FORBIDDEN):
            forbidden = edited & (found <= limit)
            left = (~forbidden & (kept > -jnp.inf)).any(axis=-1, keepdims=True)
            kept = jnp.where(forbidden & left, -jnp.inf, kept)
        return kept

    logits = lax.cond(edited.any(), biased, lambda: logits)
    if processor is not None:
        logits = processor(logits).astype(jnp.float32)
    return lax.cond(edited.any(), allowed, lambda: logits)


def penalize(
    logits: jax.Array,  # [R, V] float32
    arrays: SamplingArrays,
    adjustments: Adjustments,
    history: jax.Array,  # [M, X]
    lengths: jax.Array,  # [R]
) -> jax.Array:  # [R, V] float32
    """Apply the repetition penalty (arXiv 1909.05858, prompt and output), then the other two.

    The repetition penalty divides positive logits of seen tokens and multiplies the others, once
    per token id. For tokens in the output, `frequency` times the count and `presence` once are
    subtracted.
    """
    repetition = adjustments.repetition[:, None]
    frequency, presence = adjustments.frequency[:, None], adjustments.presence[:, None]
    repeats, outputs = repetition != 1, (frequency != 0) | (presence != 0)

    def counts(start: jax.Array, wanted: jax.Array) -> jax.Array:
        end = jnp.where(wanted[:, 0], lengths, 0)
        return token_counts(history, arrays.slots, start, end, logits.shape[-1])

    def repeated() -> jax.Array:
        seen = counts(jnp.zeros_like(lengths), repeats) > 0
        changed = jnp.where(logits > 0, logits / repetition, logits * repetition)
        return jnp.where(seen, changed, logits)

    def subtracted() -> jax.Array:
        count = counts(arrays.num_prompt, outputs).astype(jnp.float32)
        return logits - frequency * count - jnp.where(count > 0, presence, 0)

    logits = lax.cond(repeats.any(), repeated, lambda: logits)
    return lax.cond(outputs.any(), subtracted, lambda: logits)


def token_counts(
    history: jax.Array,  # [M, X]
    slots: jax.Array,  # [R]
    starts: jax.Array,  # [R]
    ends: jax.Array,  # [R]
    vocab: int,
) -> jax.Array:  # [R, V] int32
    """Count each token at the positions [start, end) of the row's slot.

    Processes the history in chunks up to the longest row, so the cost depends on the actual
    lengths and not on X. Entries outside [start, end) are ignored.
    """
    room = history.shape[1]
    size = min(CHUNK, room)
    rows = jnp.arange(slots.shape[0], dtype=jnp.int32)[:, None]

    def add_chunk(index: jax.Array, counts: jax.Array) -> jax.Array:
        first = jnp.minimum(index * size, room - size)  # the last chunk overlaps its predecessor
        chunk = lax.dynamic_slice_in_dim(history, first, size, axis=1)
        tokens = jnp.take(chunk, slots, axis=0, mode="clip")
        at = (first + jnp.arange(size, dtype=jnp.int32))[None]
        real = (at >= index * size) & (at >= starts[:, None]) & (at < ends[:, None])
        real &= (tokens >= 0) & (tokens < vocab)
        return counts.at[rows, jnp.where(real, tokens, vocab)].add(1, mode="drop")

    num_chunks = (jnp.minimum(ends.max(), room) + size - 1) // size
    zeros = jnp.zeros((slots.shape[0], vocab), jnp.int32)
    return lax.fori_loop(0, num_chunks.astype(jnp.int32), add_chunk, zeros)
