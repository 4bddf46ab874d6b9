"""Find each row's smallest prefix of best tokens whose weights reach a target, exactly."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from pagedjax.sample.ranking import LISTED, Prefix, all_tokens, best, short_cumsum, when

PASSES = 14  # bisection passes over a row before the tokens after `low` are listed again

# Maps values of any shape to weights; never increases with the value, and 0 at infinity.
Weigh = Callable[[jax.Array], jax.Array]


@struct.dataclass
class _Search:
    """The loop state of `reach`. A row's prefix ends at a value above `low`."""

    low: jax.Array  # [R]
    mass: jax.Array  # [R], total weight of the tokens with values up to `low`
    level: jax.Array  # [R], the value of the last listed token
    below: jax.Array  # [R], total weight of the tokens with values below `level`
    value: jax.Array  # [R], with `last` the result of rows that are done
    last: jax.Array  # [R]
    room: jax.Array  # [R]; > 0: the number of tokens taken at `value`, replaces `last`
    done: jax.Array  # [R] bool


def reach(
    values: jax.Array,  # [R, N, BLOCK], >= 0, infinity in padding
    listed: tuple[jax.Array, jax.Array],  # [R, LISTED] each, `best` of the values
    weigh: Weigh,
    target: jax.Array,  # [R], > 0
    active: jax.Array,  # [R] bool, the rows to search
    within: Prefix,  # the candidate tokens; the listed ones are already restricted to it
    most: jax.Array,  # scalar, finite; values above it have weight 0
) -> Prefix:
    """The smallest prefix of each row whose weights reach `target`; all tokens if none does.

    Usually the prefix ends among the listed tokens. Otherwise passes over the row raise a lower
    bound on its last value until it must end within the next LISTED tokens, which are then listed.
    """
    rows, everything = target.shape[0], all_tokens(values)
    zeros = jnp.zeros(rows)
    search = _Search(
        low=zeros, mass=zeros, level=zeros, below=zeros, value=everything.value,
        last=everything.last, room=jnp.zeros(rows, jnp.int32), done=~active,
    )  # fmt: skip

    def another_round(search: _Search) -> _Search:
        still = search.low < jnp.inf  # always true, but not loop-invariant, see `when`
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
    """Finish rows whose prefix ends among the tokens listed after `low`, or that have no more."""
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
    """Raise `low` by bisection, and finish the rows whose prefix ends at the value `level`."""

    def mass_up_to(bound: jax.Array) -> jax.Array:
        within = values <= bound[:, None, None]
        return jnp.where(within, weigh(values), 0).sum(axis=-1).sum(axis=-1)

    # Bisect over bit patterns: for non-negative floats they have the same order as the values.
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
        far, short = is_far(bracket), reached < target  # stop per row, not per batch
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
    """The id of the nth True entry of each row; past the last True one if there are fewer."""
    ends = jnp.cumsum(mask.sum(axis=-1, dtype=jnp.int32), axis=-1)
    block = jnp.minimum((ends < nth[:, None]).sum(axis=-1, dtype=jnp.int32), mask.shape[1] - 1)
    inside = jnp.take_along_axis(mask, block[:, None, None], axis=1)[:, 0]
    before = jnp.where(block > 0, jnp.take_along_axis(ends, block[:, None] - 1, 1)[:, 0], 0)
    counts = before[:, None] + short_cumsum(inside.astype(jnp.int32))
    return block * mask.shape[2] + (counts < nth[:, None]).sum(axis=-1, dtype=jnp.int32)
