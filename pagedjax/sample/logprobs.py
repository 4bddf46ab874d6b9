"""Log probabilities of chosen tokens and of the most likely ones.

Computed from the model's logits they are "raw"; computed from `sampler.processed_logits` they
describe the distribution that the token was drawn from.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from pagedjax.sample.ranking import in_blocks, largest


@struct.dataclass
class TokenLogprobs:
    """One entry per row of logits; `ids` are sorted best first, ties broken by the lower id."""

    logprob: jax.Array  # [R] float32, of the chosen token
    rank: jax.Array  # [R] int32, 1 + the number of strictly more likely tokens
    ids: jax.Array  # [R, C] int32
    logprobs: jax.Array  # [R, C] float32


def token_logprobs(
    logits: jax.Array,  # [R, V] float32
    tokens: jax.Array,  # [R], the chosen ones
    count: int,
) -> TokenLogprobs:
    """Log-softmax of the chosen and of the C = `count` best tokens; -inf where the logit is."""
    blocks = in_blocks(logits, -jnp.inf)
    most = blocks.max(axis=-1).max(axis=-1)
    base = jnp.where(jnp.isfinite(most), most, 0)  # all logits -inf, or one +inf
    mass = jnp.exp(blocks - base[:, None, None]).sum(axis=-1).sum(axis=-1)
    normalizer = base + jnp.log(mass)
    chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1, mode="clip")
    best, ids = largest(blocks, count)
    return TokenLogprobs(
        logprob=chosen[:, 0] - normalizer,
        rank=1 + _count(blocks > chosen[:, :, None]),
        ids=ids,
        logprobs=best - normalizer[:, None],
    )


def _count(mask: jax.Array) -> jax.Array:  # [R, N, BLOCK] bool -> [R]
    """Count True entries; blocks use uint8, as XLA on CPU materialises the converted summands."""
    return mask.sum(axis=-1, dtype=jnp.uint8).sum(axis=-1, dtype=jnp.int32)
