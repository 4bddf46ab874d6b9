"""XLA decode against the reference, on poisoned pools."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import reference, xla_decode
from tests.support.paged_pools import LAYER, problem, queries
from tests.support.xla_ops import DTYPES, KV_HEADS, SHAPES, assert_close, decode


def edges(size):
    """Context lengths around a page of `size`, and one longer than a group of pages."""
    return [0, 1, max(size - 1, 0), size, size + 1, 130]


@SHAPES
def test_decode_agrees_with_the_reference(width, group, size, dtype):
    arguments = problem(edges(size), KV_HEADS, size, width, seed=1).cast(dtype)
    q = queries(6, KV_HEADS * group, width, dtype)
    wanted = reference.paged_decode(q, *arguments, scale=width**-0.5)
    assert_close(decode(q, *arguments, scale=width**-0.5), wanted, dtype)


def test_decode_of_many_rows_agrees_with_the_reference():
    """More rows than ROWS_AT_ONCE, with unsorted lengths."""
    lengths = np.random.default_rng(2).integers(0, 60, xla_decode.ROWS_AT_ONCE * 2 + 3).tolist()
    arguments = problem(lengths, KV_HEADS, 4, 8, seed=2).cast("float32")
    q = queries(len(lengths), 6, 8, "float32")
    wanted = reference.paged_decode(q, *arguments, scale=0.3)
    assert_close(decode(q, *arguments, scale=0.3), wanted, "float32")


@pytest.mark.parametrize("lengths", [[0, 0, 0], [0, 5, 0]])
def test_decode_rows_without_context_are_zero(lengths):
    """Rows of padding have no context."""
    arguments = problem(lengths, KV_HEADS, 4, 8, seed=3).cast("float32")
    out = np.asarray(decode(queries(len(lengths), 6, 8, "float32"), *arguments, scale=1.0))
    empty = np.array(lengths) == 0
    np.testing.assert_array_equal(out[empty], 0)


def test_decode_reads_the_given_layer():
    arguments = problem([5, 9], KV_HEADS, 4, 8, seed=4).cast("float32")
    pools = [np.roll(pool, 1, axis=0) for pool in arguments[:2]]
    q = queries(2, 6, 8, "float32")
    moved = decode(q, *pools, np.int32(LAYER + 1), *arguments[3:], scale=1.0)
    np.testing.assert_array_equal(moved, decode(q, *arguments, scale=1.0))


def test_decode_averages_values_where_all_scores_are_very_negative():
    """Equal scores of -6e4 give the mean of the values."""
    k_pool, v_pool, *rest = problem([5], KV_HEADS, 4, 8, seed=5).cast("float32")
    k_pool[np.isfinite(k_pool)] = -6e4 / 8
    out = decode(np.ones((1, 2, 8), np.float32), k_pool, v_pool, *rest, scale=1.0)
    wanted = reference.paged_decode(np.zeros((1, 2, 8), np.float32), k_pool, v_pool, *rest, scale=1)
    assert_close(out, wanted, "float32")


def test_decode_has_the_dtype_of_the_queries():
    arguments = problem([5, 9], KV_HEADS, 4, 8, seed=6).cast("bfloat16")
    assert decode(queries(2, 6, 8, "bfloat16"), *arguments, scale=1.0).dtype == jnp.bfloat16


@DTYPES
def test_decode_rows_do_not_change_with_their_neighbours(dtype):
    """Results are bit-identical among other rows and at another position."""
    lengths = [33, 5, 140, 17]
    *pools, layer, tables, lens = problem(lengths, KV_HEADS, 4, 64, seed=7).cast(dtype)
    q = queries(4, 6, 64, dtype)

    def rows(order):
        order = np.array(order)
        at = layer, tables[order], lens[order]
        return np.asarray(decode(q[order], *pools, *at, scale=0.125))

    together = rows([0, 1, 2, 3])
    np.testing.assert_array_equal(rows([2, 0, 2, 0])[:2], together[[2, 0]])
    np.testing.assert_array_equal(rows([2, 0]), together[[2, 0]])
