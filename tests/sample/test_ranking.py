"""The best tokens and their smallest prefix that reaches a mass, compared with sorting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pagedjax.sample.ranking import LISTED, all_tokens, best, in_blocks, largest
from pagedjax.sample.reach import reach

largest = jax.jit(largest, static_argnums=1)


def halves(values):
    """Weights 1/2, 1/4, 1/8, ... of the values 1, 2, 3, ...; their float32 sums are exact."""
    return jnp.where(values < jnp.inf, jnp.exp2(-values), 0)


@jax.jit
def reached(values, target):
    blocks = in_blocks(values, jnp.inf)
    active = jnp.ones(len(values), bool)
    listed, everything = best(blocks, LISTED), all_tokens(blocks)
    prefix = reach(blocks, listed, halves, target, active, everything, jnp.float32(64))
    return prefix.mask(blocks).reshape(len(values), -1)[:, : values.shape[1]]


def smallest_prefix(values, target):
    order = np.argsort(values, kind="stable")
    mass = np.cumsum(np.where(np.isinf(values), 0, np.exp2(-values.astype(np.float64)))[order])
    kept = np.zeros(len(values), bool)
    kept[order[: np.searchsorted(mass, target) + 1]] = True
    return kept


@pytest.mark.parametrize("vocab", [7, 128, 1000, 3000])
@pytest.mark.parametrize("levels", [1, 3, 11])
def test_the_smallest_prefix_is_that_of_sorting(vocab, levels):
    """With sums that are exact in float32, and with ties of any number."""
    rng = np.random.default_rng(vocab)
    values = rng.integers(1, levels + 1, (250, vocab)).astype(np.float32)
    values[rng.random(values.shape) < 0.1] = np.inf
    values[:, rng.integers(vocab)] = 1
    target = rng.integers(1, np.maximum(2, halves(values).sum(axis=-1) * 1024)) / 1024
    found = np.asarray(reached(jnp.asarray(values), jnp.asarray(target, jnp.float32)))
    wanted = np.stack([smallest_prefix(*pair) for pair in zip(values, target, strict=True)])
    finite = np.isfinite(values)
    np.testing.assert_array_equal(found & finite, wanted & finite)


def test_values_of_any_size_are_told_apart():
    """From the smallest to the largest normal floats, including adjacent ones."""
    rng = np.random.default_rng(1)
    exponents = rng.uniform(-126, 128, (50, 2000))
    values = np.minimum(2.0**exponents, np.finfo(np.float32).max).astype(np.float32)
    values[:, ::2] = np.nextafter(values[:, 1::2], np.float32(np.inf))
    count = rng.integers(1, 2001, 50)
    blocks = in_blocks(jnp.asarray(values), jnp.inf)

    def ones(values):
        return (values < jnp.inf).astype(jnp.float32)

    prefix = jax.jit(
        lambda blocks, target: reach(
            blocks, best(blocks, LISTED), ones, target, target > 0, all_tokens(blocks),
            jnp.finfo(jnp.float32).max,
        )
    )(blocks, jnp.asarray(count, jnp.float32))  # fmt: skip
    found = np.asarray(prefix.mask(blocks)).reshape(50, -1)[:, :2000]
    ranks = np.argsort(np.argsort(values, axis=-1, kind="stable"), axis=-1)
    finite = np.isfinite(values)
    np.testing.assert_array_equal(found & finite, (ranks < count[:, None]) & finite)


@pytest.mark.parametrize(("vocab", "count"), [(5, 5), (128, 3), (700, 20), (700, 700), (129, 129)])
def test_the_largest_come_in_order_with_lower_ids_first(vocab, count):
    rng = np.random.default_rng(vocab)
    values = rng.integers(-3, 4, (1000, vocab)).astype(np.float32)
    values[rng.random(values.shape) < 0.2] = -np.inf
    values[values == 0] = rng.choice([0.0, -0.0], (values == 0).sum())
    order = np.argsort(-values, axis=-1, kind="stable")[:, :count]
    found, ids = largest(in_blocks(jnp.asarray(values), -jnp.inf), count)
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_array_equal(found, np.take_along_axis(values, order, axis=-1))
