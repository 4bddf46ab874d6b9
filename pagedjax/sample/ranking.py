"""Exact selection of the best tokens of each row without sorting the vocabulary.

Order: smaller value first, ties broken by the lower token id. A row is split into blocks of
tokens. The C best tokens lie in the C blocks with the best minima, since C tokens (these minima)
are better than any token of another block. One pass over the row and two small selections
therefore find them in order. A set of best tokens is represented by the value and id of its last
token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

BLOCK = 128  # tokens per block
LISTED = 64  # best tokens that are listed individually


@struct.dataclass
class Prefix:
    """The best tokens of each row: those below `value`, and those equal to it with id <= `last`."""

    value: jax.Array  # [R]
    last: jax.Array  # [R]

    def holds(self, values: jax.Array, ids: jax.Array) -> jax.Array:  # [R, ...] each -> bool
        """Return a mask of the given tokens that belong to the prefix."""
        shape = (-1, *[1] * (values.ndim - 1))
        value, last = self.value.reshape(shape), self.last.reshape(shape)
        return (values < value) | ((values == value) & (ids <= last))

    def shorter(self, other: Prefix) -> Prefix:
        """For each row, the shorter of the two prefixes."""
        less = (self.value < other.value) | ((self.value == other.value) & (self.last < other.last))
        return jax.tree.map(lambda mine, its: jnp.where(less, mine, its), self, other)

    def mask(self, values: jax.Array) -> jax.Array:  # [R, N, BLOCK] -> bool
        """Return a mask over the vocabulary of the tokens that belong to the prefix."""
        _, blocks, block = values.shape
        ids = jnp.arange(blocks * block, dtype=jnp.int32).reshape(1, blocks, block)
        return self.holds(values, ids)

    def restrict(self, values: jax.Array) -> jax.Array:  # [R, N, BLOCK]
        """Replace values outside the prefix by infinity."""
        return jnp.where(self.mask(values), values, jnp.inf)


def all_tokens(
    values: jax.Array,  # [R, N, BLOCK]
) -> Prefix:
    """The prefix of each row that contains all tokens."""
    rows, blocks, block = values.shape
    return Prefix(jnp.full(rows, jnp.inf), jnp.full(rows, blocks * block, jnp.int32))


def in_blocks(
    values: jax.Array,  # [R, V]
    fill: float,
) -> jax.Array:  # [R, N, BLOCK]
    """Split rows into blocks and pad the last; copies only where BLOCK does not divide V."""
    rows, vocab = values.shape
    padded = jnp.pad(values, ((0, 0), (0, -vocab % BLOCK)), constant_values=fill)
    return padded.reshape(rows, -1, BLOCK)


def best(
    values: jax.Array,  # [R, N, BLOCK], infinity in padding
    count: int,
    after: jax.Array | None = None,  # [R]
) -> tuple[jax.Array, jax.Array]:  # [R, count] values and ids
    """The `count` smallest values of each row in order, of those above `after` if given."""

    def left(part: jax.Array) -> jax.Array:
        return part if after is None else jnp.where(part > after[:, None, None], part, jnp.inf)

    found, ids = _pick(values, -left(values).min(axis=-1), lambda part: -left(part), count)
    return -found, ids


def largest(
    values: jax.Array,  # [R, N, BLOCK], -infinity in padding
    count: int,
) -> tuple[jax.Array, jax.Array]:  # [R, count] values and ids
    """The `count` largest values of each row in order; 0 and -0 compare equal."""
    return _pick(values, values.max(axis=-1), lambda part: part, count)


def _pick(
    values: jax.Array,  # [R, N, BLOCK]
    most: jax.Array,  # [R, N], the largest key of each block
    key: Callable[[jax.Array], jax.Array],  # applied to the selected blocks
    count: int,
) -> tuple[jax.Array, jax.Array]:  # [R, count] keys and ids
    rows, blocks, block = values.shape
    _, chosen = lax.top_k(_plain(most), min(count, blocks))
    chosen = jnp.sort(chosen, axis=-1)  # top_k takes the first of equal values: id order
    inside = key(jnp.take_along_axis(values, chosen[:, :, None], axis=1)).reshape(rows, -1)
    found, at = lax.top_k(_plain(inside), count)
    ids = jnp.take_along_axis(chosen, at // block, axis=1) * block + at % block
    return found, ids.astype(jnp.int32)


def _plain(values: jax.Array) -> jax.Array:
    """Replace -0 by 0, since top_k sorts -0 after 0."""
    return jnp.where(values == 0, 0, values)


def when(
    condition: jax.Array,  # scalar bool
    function: Callable[..., Any],
    otherwise: Any,
    *operands: jax.Array,  # small; all costly work of the function must depend on one of them
) -> Any:
    """`lax.cond` for small results, implemented as a loop of zero or one iterations.

    XLA on CPU parallelises work inside a loop over the cores, but not work inside a branch. It
    would hoist loop-invariant work out of the loop and always run it, so the operands are made to
    look dependent on the loop index.
    """

    def one_round(index: jax.Array, _: Any) -> Any:
        return function(*(jnp.where(index >= 0, each, jnp.zeros_like(each)) for each in operands))

    return lax.fori_loop(0, condition.astype(jnp.int32), one_round, otherwise)


def short_cumsum(
    values: jax.Array,  # [R, C], C small
) -> jax.Array:  # [R, C]
    """Cumulative sums along the last axis, which compile much faster than `jnp.cumsum`."""
    ids = jnp.arange(values.shape[-1], dtype=jnp.int32)
    upto = (ids[None] <= ids[:, None])[None]
    return jnp.where(upto, values[:, None], 0).sum(axis=-1)
