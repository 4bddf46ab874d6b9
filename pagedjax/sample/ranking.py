"""The best tokens of each row without sorting the vocabulary: by blocks, exactly.

Order: smaller value first, ties by lower token id. A row is split into blocks of tokens. The C best
tokens lie in the C best blocks, judged by their best token: a token outside them has C better
ones, the best of each. So a pass over the row and two small selections find them in order, and a
set of best tokens is told by its last token: a value and an id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

BLOCK = 128  # tokens of a block
LISTED = 64  # best tokens that are looked at one by one


@struct.dataclass
class Prefix:
    """The best tokens of each row: those with less than `value`, and at it the ids <= `last`."""

    value: jax.Array  # [R]
    last: jax.Array  # [R]

    def holds(self, values: jax.Array, ids: jax.Array) -> jax.Array:  # [R, ...] each -> bool
        """Which of these tokens belong to it."""
        shape = (-1, *[1] * (values.ndim - 1))
        value, last = self.value.reshape(shape), self.last.reshape(shape)
        return (values < value) | ((values == value) & (ids <= last))

    def shorter(self, other: Prefix) -> Prefix:
        """Per row the one that is within the other."""
        less = (self.value < other.value) | ((self.value == other.value) & (self.last < other.last))
        return jax.tree.map(lambda mine, its: jnp.where(less, mine, its), self, other)

    def mask(self, values: jax.Array) -> jax.Array:  # [R, N, BLOCK] -> bool
        """Which tokens of all belong to it."""
        _, blocks, block = values.shape
        ids = jnp.arange(blocks * block, dtype=jnp.int32).reshape(1, blocks, block)
        return self.holds(values, ids)

    def restrict(self, values: jax.Array) -> jax.Array:  # [R, N, BLOCK]
        """Infinity outside of it."""
        return jnp.where(self.mask(values), values, jnp.inf)


def all_tokens(
    values: jax.Array,  # [R, N, BLOCK]
) -> Prefix:
    """The prefix of each row that leaves none out."""
    rows, blocks, block = values.shape
    return Prefix(jnp.full(rows, jnp.inf), jnp.full(rows, blocks * block, jnp.int32))


def in_blocks(
    values: jax.Array,  # [R, V]
    fill: float,
) -> jax.Array:  # [R, N, BLOCK]
    """Rows as blocks, the last one filled up; a copy only where BLOCK does not divide V."""
    rows, vocab = values.shape
    padded = jnp.pad(values, ((0, 0), (0, -vocab % BLOCK)), constant_values=fill)
    return padded.reshape(rows, -1, BLOCK)


def best(
    values: jax.Array,  # [R, N, BLOCK], infinity at the filling
    count: int,
    after: jax.Array | None = None,  # [R]
) -> tuple[jax.Array, jax.Array]:  # [R, count] values and ids
    """The `count` smallest values of each row in order; only those above `after`."""

    def left(part: jax.Array) -> jax.Array:
        return part if after is None else jnp.where(part > after[:, None, None], part, jnp.inf)

    found, ids = _pick(values, -left(values).min(axis=-1), lambda part: -left(part), count)
    return -found, ids


def largest(
    values: jax.Array,  # [R, N, BLOCK], -infinity at the filling
    count: int,
) -> tuple[jax.Array, jax.Array]:  # [R, count] values and ids
    """The `count` largest values of each row in order; 0 and -0 are equals."""
    return _pick(values, values.max(axis=-1), lambda part: part, count)


def _pick(
    values: jax.Array,  # [R, N, BLOCK]
    most: jax.Array,  # [R, N], the largest key of each block
    key: Callable[[jax.Array], jax.Array],  # of some blocks of values
    count: int,
) -> tuple[jax.Array, jax.Array]:  # [R, count] keys and ids
    rows, blocks, block = values.shape
    _, chosen = lax.top_k(_plain(most), min(count, blocks))
    chosen = jnp.sort(chosen, axis=-1)  # in the order of ids, since top_k takes the first of equals
    inside = key(jnp.take_along_axis(values, chosen[:, :, None], axis=1)).reshape(rows, -1)
    found, at = lax.top_k(_plain(inside), count)
    ids = jnp.take_along_axis(chosen, at // block, axis=1) * block + at % block
    return found, ids.astype(jnp.int32)


def _plain(values: jax.Array) -> jax.Array:
    """0 for -0, which top_k puts after 0."""
    return jnp.where(values == 0, 0, values)


def when(
    condition: jax.Array,  # scalar bool
    function: Callable[..., Any],
    otherwise: Any,
    *operands: jax.Array,  # small; all costly work of the function must depend on one of them
) -> Any:
    """`lax.cond` for results that are small: a loop of one round or none.

    On CPU XLA splits the work inside a loop among the cores, and that inside a branch not. It
    would compute before the loop, needed or not, what no round changes; so the operands seem to
    change with the round.
    """

    def one_round(index: jax.Array, _: Any) -> Any:
        return function(*(jnp.where(index >= 0, each, jnp.zeros_like(each)) for each in operands))

    return lax.fori_loop(0, condition.astype(jnp.int32), one_round, otherwise)


def short_cumsum(
    values: jax.Array,  # [R, C], C small
) -> jax.Array:  # [R, C]
    """Cumulative sums, which compile much faster like this than as `jnp.cumsum`."""
    ids = jnp.arange(values.shape[-1], dtype=jnp.int32)
    upto = (ids[None] <= ids[:, None])[None]
    return jnp.where(upto, values[:, None], 0).sum(axis=-1)
