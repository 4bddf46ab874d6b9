"""XLA prefill against the reference, on poisoned pools."""

import numpy as np
import pytest

from pallas_kernels import reference
from tests.support.paged_pools import LAYER, problem, queries, starts
from tests.support.xla_ops import DTYPES, KV_HEADS, SHAPES, assert_close, decode, prefill


def ragged(size):
    """(context length, queries) of edge cases: none, one, a page, several tiles, later chunks."""
    return [(0, 0), (1, 1), (size, size), (size + 1, 1), (130, 130), (7, 0), (130, 33), (40, 32)]


@SHAPES
def test_prefill_agrees_with_the_reference(width, group, size, dtype):
    lengths, counts = zip(*ragged(size), strict=True)
    arguments = problem(lengths, KV_HEADS, size, width, seed=1).cast(dtype)
    q = queries(sum(counts) + 5, KV_HEADS * group, width, dtype)
    wanted = reference.paged_prefill(q, *arguments, starts(counts), scale=width**-0.5)
    got = prefill(q, *arguments, starts(counts), scale=width**-0.5)
    assert_close(got, wanted, dtype)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 31, 32, 33, 130])
def test_prefill_of_one_whole_prompt(length):
    spare = 34 - -(-length // 4)  # pads the table, so that one compiled program serves all lengths
    arguments = problem([length], KV_HEADS, 4, 8, seed=2, spare=spare).cast("float32")
    q = queries(130, 6, 8, "float32")
    wanted = reference.paged_prefill(q, *arguments, starts([length]), scale=0.3)
    assert_close(prefill(q, *arguments, starts([length]), scale=0.3), wanted, "float32")


@pytest.mark.parametrize("counts", [[0, 0, 0], [3, 0, 2], [0, 5, 0]])
def test_padding_queries_of_prefill_are_zero(counts):
    arguments = problem([9] * len(counts), KV_HEADS, 4, 8, seed=3).cast("float32")
    q = queries(45, 6, 8, "float32")
    out = np.asarray(prefill(q, *arguments, starts(counts), scale=1.0))
    np.testing.assert_array_equal(out[sum(counts) :], 0)


def test_prefill_of_one_query_per_row_equals_decode():
    lengths = [1, 5, 130, 16]
    arguments = problem(lengths, KV_HEADS, 4, 8, seed=4).cast("float32")
    q = queries(4, 6, 8, "float32")
    wanted = np.asarray(decode(q, *arguments, scale=1.0))
    assert_close(prefill(q, *arguments, starts([1] * 4), scale=1.0), wanted, "float32")


def test_a_query_does_not_see_the_keys_after_it():
    """Changing the last key and value of a prompt changes only the last query's output."""
    k_pool, v_pool, layer, tables, lens = problem([9], KV_HEADS, 4, 8, seed=5).cast("float32")
    q = queries(9, 6, 8, "float32")
    before = np.asarray(prefill(q, k_pool, v_pool, layer, tables, lens, starts([9]), scale=1.0))
    k_pool, v_pool = k_pool.copy(), v_pool.copy()
    k_pool[LAYER, tables[0, 2], :, 0] += 1
    v_pool[LAYER, tables[0, 2], :, 0] += 1
    after = np.asarray(prefill(q, k_pool, v_pool, layer, tables, lens, starts([9]), scale=1.0))
    assert (before != after).any(axis=(1, 2)).tolist() == [False] * 8 + [True]


@DTYPES
def test_prefill_rows_do_not_change_with_their_neighbours(dtype):
    """Results are bit-identical for the same total number of queries."""
    lengths, counts = [33, 5, 140, 17], np.array([33, 2, 40, 17])
    *pools, layer, tables, lens = problem(lengths, KV_HEADS, 4, 64, seed=7).cast(dtype)
    q = queries(counts.sum(), 6, 64, dtype)
    first = starts(counts)
    together = np.asarray(prefill(q, *pools, layer, tables, lens, first, scale=0.125))
    order = np.array([2, 0])
    parts = [np.arange(first[row], first[row + 1]) for row in order]
    chosen = np.resize(np.concatenate(parts), len(q))  # padded to the same shape
    pair = prefill(q[chosen], *pools, layer, tables[order], lens[order], starts(counts[order]),
                   scale=0.125)  # fmt: skip
    np.testing.assert_array_equal(
        np.asarray(pair)[: counts[order].sum()], together[np.concatenate(parts)]
    )
