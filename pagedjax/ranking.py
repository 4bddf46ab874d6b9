"""The best tokens of each row without sorting the vocabulary: by blocks, exactly.

Better is smaller, and among equals the lower id. A row is split into blocks of tokens. The C best
tokens lie in the C best blocks, judged by their best token: a token outside them has C better
ones, the best of each. So a pass over the row and two small selections find them in order, and a
set of best tokens is told by its last token: a value and an id.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

BLOCK = 128  # tokens of a block
LISTED = 64  # best tokens that are looked at one by one
PASSES = 14  # over a row, before the tokens that follow are listed again

# What a value counts, for any shape: it never rises with the value, and infinity counts nothing.
Weigh = Callable[[jax.Array], jax.Array]


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


@struct.dataclass
class _Search:
    """`reach` at work. A row's prefix ends after the value `low`."""

    low: jax.Array  # [R]
    mass: jax.Array  # [R], what the tokens up to `low` count
    level: jax.Array  # [R], the value of the last token that was listed
    below: jax.Array  # [R], what the tokens before `level` count
    value: jax.Array  # [R], the answer of rows that are done, with `last`
    last: jax.Array  # [R]
    room: jax.Array  # [R]; > 0: instead of `last`, the number of tokens taken at `value`
    done: jax.Array  # [R] bool


def reach(
    values: jax.Array,  # [R, N, BLOCK], >= 0, infinity at the filling
    listed: tuple[jax.Array, jax.Array],  # [R, LISTED] each, `best` of the values
    weigh: Weigh,
    target: jax.Array,  # [R], > 0
    active: jax.Array,  # [R] bool, the rows that need an answer
    within: Prefix,  # the tokens that are taken from; the listed ones are restricted already
    most: jax.Array,  # scalar, finite; no value above it counts anything
) -> Prefix:
    """The smallest prefix of each row that counts `target`; all tokens where none does.

    Mostly it ends among the listed tokens. Where it does not, passes over the row find a value
    that it ends after, until it must end within the next LISTED tokens, and those are listed.
    """
    rows, everything = target.shape[0], all_tokens(values)
    zeros = jnp.zeros(rows)
    search = _Search(
        low=zeros, mass=zeros, level=zeros, below=zeros, value=everything.value,
        last=everything.last, room=jnp.zeros(rows, jnp.int32), done=~active,
    )  # fmt: skip

    def another_round(search: _Search) -> _Search:
        still = search.low < jnp.inf  # always; but it changes with the round, see `when`
        value, last = jnp.where(still, within.value, 0), jnp.where(still, within.last, 0)
        left = Prefix(value, last).restrict(values)
        search = _narrow(search, left, weigh, target, most)
        return _settle(search, best(left, LISTED, search.low), weigh, target)

    search = _settle(search, listed, weigh, target)
    search = lax.while_loop(lambda search: ~search.done.all(), another_round, search)
    last = when(
        (search.room > 0).any(),
        lambda value: _nth_true(values == value[:, None, None], search.room),
        search.last,
        search.value,
    )
    return Prefix(search.value, jnp.where(search.room > 0, last, search.last))


def _settle(
    search: _Search, listed: tuple[jax.Array, jax.Array], weigh: Weigh, target: jax.Array
) -> _Search:
    """End the rows whose prefix ends among the tokens that follow `low`, or that have no more."""
    values, ids = listed
    weights = weigh(values)
    hit = search.mass[:, None] + short_cumsum(weights) >= target[:, None]
    at = jnp.argmax(hit, axis=-1)[:, None]
    ends = hit.any(axis=-1) & ~search.done
    level = values[:, -1]
    below = jnp.where(values < level[:, None], weights, 0).sum(axis=-1)
    return dataclasses.replace(
        search,
        level=level,
        below=search.mass + below,
        value=jnp.where(ends, jnp.take_along_axis(values, at, axis=1)[:, 0], search.value),
        last=jnp.where(ends, jnp.take_along_axis(ids, at, axis=1)[:, 0], search.last),
        done=search.done | ends | (level == jnp.inf),
    )


_Bracket = tuple[jax.Array, jax.Array, jax.Array, jax.Array]  # low, mass, high [R]; passes


def _narrow(
    search: _Search, values: jax.Array, weigh: Weigh, target: jax.Array, most: jax.Array
) -> _Search:
    """Raise `low`, which no listed token reached; end the rows whose prefix ends at `level`."""

    def mass_up_to(bound: jax.Array) -> jax.Array:
        within = values <= bound[:, None, None]
        return jnp.where(within, weigh(values), 0).sum(axis=-1).sum(axis=-1)

    # Bisection is over bit patterns, which are ordered like the floats that are not negative.
    mass = mass_up_to(search.level)
    crowded = (mass >= target) & ~search.done
    tiny = jnp.finfo(jnp.float32).tiny
    room = jnp.ceil((target - search.below) / jnp.maximum(weigh(search.level), tiny))
    room = jnp.clip(room, 1, values[0].size).astype(jnp.int32)
    room = jnp.where(crowded, room, search.room)
    done = search.done | crowded
    value = jnp.where(crowded, search.level, search.value)
    high = jnp.minimum(values.max(axis=-1).max(axis=-1), most)

    def is_far(bracket: _Bracket) -> jax.Array:  # [R] bool
        low, mass, high, _ = bracket
        listed = target - mass <= LISTED * weigh(high)
        return ~done & ~listed & (_bits(high) - _bits(low) > 1)

    def halve(bracket: _Bracket) -> _Bracket:
        low, mass, high, passes = bracket
        bits = _bits(low) + (_bits(high) - _bits(low)) // 2
        middle = lax.bitcast_convert_type(bits, jnp.float32)
        reached = mass_up_to(middle)
        far, short = is_far(bracket), reached < target  # a row stops by itself, not by the batch
        low, mass = (jnp.where(far & short, *pair) for pair in ((middle, low), (reached, mass)))
        return low, mass, jnp.where(far & ~short, middle, high), passes + 1

    def go_on(bracket: _Bracket) -> jax.Array:
        return (bracket[-1] < PASSES) & is_far(bracket).any()

    low, mass, *_ = lax.while_loop(go_on, halve, (search.level, mass, high, jnp.int32(0)))
    return dataclasses.replace(search, low=low, mass=mass, value=value, room=room, done=done)


def _bits(values: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(values, jnp.int32)


def _nth_true(
    mask: jax.Array,  # [R, N, BLOCK] bool
    nth: jax.Array,  # [R], >= 1
) -> jax.Array:  # [R]
    """The id of the nth true entry of each row; beyond the last one where there are fewer."""
    ends = jnp.cumsum(mask.sum(axis=-1, dtype=jnp.int32), axis=-1)
    block = jnp.minimum((ends < nth[:, None]).sum(axis=-1, dtype=jnp.int32), mask.shape[1] - 1)
    inside = jnp.take_along_axis(mask, block[:, None, None], axis=1)[:, 0]
    before = jnp.where(block > 0, jnp.take_along_axis(ends, block[:, None] - 1, 1)[:, 0], 0)
    counts = before[:, None] + short_cumsum(inside.astype(jnp.int32))
    return block * mask.shape[2] + (counts < nth[:, None]).sum(axis=-1, dtype=jnp.int32)
