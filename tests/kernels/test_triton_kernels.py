"""The Triton kernels, interpreted, against the reference, on poisoned pools.

`test_aot` compiles the same cases for GPUs.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import reference, triton_decode, triton_prefill
from pallas_kernels.tiles import DecodeTiles, PrefillTiles
from tests.support.kernel_cases import FIXED, TOLERANCE, KernelCase, decode_cases, prefill_cases
from tests.support.paged_pools import LAYER, problem, queries, starts

KV_HEADS = 2


def each(cases):
    """Parametrise by the pairwise cases, and in `make test-all` by the full product."""
    quick = cases(full=False)
    slow = [case for case in cases(full=True) if case not in set(quick)]
    return pytest.mark.parametrize(
        "case",
        [pytest.param(case, id=str(case)) for case in quick]
        + [pytest.param(case, id=str(case), marks=pytest.mark.slow) for case in slow],
    )


def run_decode(*arguments, **options):
    return np.asarray(
        jax.jit(partial(triton_decode.paged_decode, interpret=True, **options))(*arguments)
    )


def run_prefill(*arguments, **options):
    return np.asarray(
        jax.jit(partial(triton_prefill.paged_prefill, interpret=True, **options))(*arguments)
    )


def assert_close(got, wanted, dtype):
    error = np.abs(got.astype(np.float32) - wanted).max()
    assert error <= TOLERANCE[dtype] * np.abs(wanted).max()


@each(decode_cases)
def test_decode_agrees_with_the_reference(case):
    arguments, scales = case.arguments(ragged=False)
    options = case.options | scales
    got = run_decode(*arguments, **options, **case.decode_options())
    assert_close(got, reference.paged_decode(*arguments, **options), case.dtype)
    np.testing.assert_array_equal(got[0], 0)  # the row without context


@each(prefill_cases)
def test_prefill_agrees_with_the_reference(case):
    arguments, scales = case.arguments(ragged=True)
    options = case.options | scales
    got = run_prefill(*arguments, **options)
    assert_close(got, reference.paged_prefill(*arguments, **options), case.dtype)
    np.testing.assert_array_equal(got[sum(case.counts) :], 0)  # padding queries


# -- independence of a row's result ----------------------------------------------------------------

PLAIN = KernelCase(64, "float32", 16, 3)
ROWS = [33, 5, 140, 17, 300, 64]


def rows_of(chosen, dtype="float32"):
    """Decode arguments of the chosen rows, in the given order; the table width is the same."""
    made = problem(ROWS, KV_HEADS, 16, 64, seed=7).cast(dtype)
    q = queries(len(ROWS), KV_HEADS * 3, 64, dtype)
    *pools, tables, lens = made
    return q[chosen], *pools, tables[chosen], lens[chosen]


@pytest.mark.parametrize(
    ("window", "dtype"),
    [
        (None, "float32"),
        (100, "bfloat16"),
        pytest.param(100, "float32", marks=pytest.mark.slow),
        pytest.param(None, "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_fixed_splits_make_a_row_independent_of_its_neighbours(dtype, window):
    """Results are bit-identical at any position, among any rows, and for any choice of tiles."""
    options = {"scale": 0.125, "window": window, "fixed_split_tokens": FIXED}
    together = run_decode(*rows_of(np.arange(6), dtype), **options)
    for chosen in ([2], [4, 2, 0], [5, 4, 3, 2, 1, 0]):
        got = run_decode(*rows_of(np.array(chosen), dtype), **options)
        np.testing.assert_array_equal(got, together[chosen])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_prefill_rows_do_not_change_with_their_neighbours(dtype):
    counts = np.array([33, 2, 40, 17, 100, 64])
    *pools, tables, lens = problem(ROWS, KV_HEADS, 16, 64, seed=7).cast(dtype)
    q = queries(counts.sum(), KV_HEADS * 3, 64, dtype)
    first = starts(counts)
    together = run_prefill(q, *pools, tables, lens, first, scale=0.125)
    for order in ([2], [4, 0], [5, 1, 2]):
        parts = np.concatenate([np.arange(first[row], first[row + 1]) for row in order])
        got = run_prefill(
            q[parts], *pools, tables[order], lens[order], starts(counts[order]), scale=0.125
        )
        np.testing.assert_array_equal(got, together[parts])


@pytest.mark.parametrize("splits", [1, 2, 8])
def test_two_runs_are_bit_equal(splits):
    arguments = rows_of(np.arange(6))
    options = {"scale": 0.125, "tiles": DecodeTiles(32, splits)}
    first = run_decode(*arguments, **options)
    np.testing.assert_array_equal(run_decode(*arguments, **options), first)


@pytest.mark.parametrize("splits", [1, 2, 5, 64])
def test_splits_change_only_the_rounding(splits):
    """With more splits than blocks of keys, some splits are empty."""
    arguments = rows_of(np.arange(6))
    got = run_decode(*arguments, scale=0.125, tiles=DecodeTiles(16, splits))
    assert_close(got, reference.paged_decode(*arguments, scale=0.125), "float32")


def test_decode_averages_values_where_all_scores_are_very_negative():
    """Equal scores of -6e4 give the mean of the values."""
    k_pool, v_pool, *rest = problem([5], 1, 8, 16, seed=5).cast("float32")
    k_pool[np.isfinite(k_pool)] = -6e4 / 16
    q = np.ones((1, 1, 16), np.float32)
    wanted = reference.paged_decode(0 * q, k_pool, v_pool, *rest, scale=1.0)
    assert_close(run_decode(q, k_pool, v_pool, *rest, scale=1.0), wanted, "float32")
    got = run_prefill(q, k_pool, v_pool, *rest, starts([1]), scale=1.0)
    assert_close(got, wanted, "float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_result_has_the_dtype_of_the_queries(dtype):
    """The pool's dtype may be wider or narrower; products use the wider of the two."""
    q = queries(6, KV_HEADS * 3, 64, dtype)
    for pool in ("float32", "bfloat16"):
        arguments = (q, *rows_of(np.arange(6), pool)[1:])
        got = run_decode(*arguments, scale=0.125)
        assert got.dtype == jnp.dtype(dtype)
        assert_close(got, reference.paged_decode(*arguments, scale=0.125), "bfloat16")


def test_only_the_given_layer_is_read():
    q, k_pool, v_pool, layer, *rest = rows_of(np.arange(6))
    moved = [np.roll(pool, 1, axis=0) for pool in (k_pool, v_pool)]
    got = run_decode(q, *moved, np.int32(LAYER + 1), *rest, scale=0.125)
    wanted = run_decode(q, k_pool, v_pool, layer, *rest, scale=0.125)
    np.testing.assert_array_equal(got, wanted)


def test_prefill_with_rows_without_queries():
    """Rows without queries at the start, at the end and between rows of several queries."""
    counts = [0, 5, 0, 0, 5, 5, 1, 0]
    lengths = [9, 50, 3, 0, 5, 77, 1, 0]
    made = problem(lengths, KV_HEADS, 16, 64, seed=9).cast("float32")
    q = queries(sum(counts), KV_HEADS * 3, 64, "float32")
    for rows in (16, 32, 128):
        got = run_prefill(q, *made, starts(counts), scale=0.1, tiles=PrefillTiles(rows, 16))
        wanted = reference.paged_prefill(q, *made, starts(counts), scale=0.1)
        assert_close(got, wanted, "float32")


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [({"size": 24}, "block_size=24; supported: powers of two from 8 to 256"),
     ({"size": 4}, "block_size=4"), ({"width": 12}, "head_dim=12"),
     ({"width": 512}, "head_dim=512"),
     ({"window": 0}, "window=0"), ({"soft_cap": -1.0}, "soft_cap=-1.0"),
     ({"pool": "int8"}, "need one scale per vector")],
)  # fmt: skip
@pytest.mark.parametrize("op", ["decode", "prefill"])
def test_unsupported_arguments_are_named(op, change, message):
    case = dataclasses.replace(PLAIN, **change)
    shape = (1, 2, KV_HEADS, case.size, case.width)
    pool = jax.ShapeDtypeStruct(shape, case.pool)
    q = jax.ShapeDtypeStruct((3, 6, case.width), case.dtype)
    numbers = [jax.ShapeDtypeStruct(shape, "int32") for shape in ((), (3, 2), (3,), (4,))]
    function = triton_decode.paged_decode if op == "decode" else triton_prefill.paged_prefill
    numbers = numbers[:3] if op == "decode" else numbers
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(partial(function, **case.options), q, pool, pool, *numbers)


@pytest.mark.parametrize(
    ("blocks", "fits"), [(2**14, True), (2**14 + 1, False), (2**15, False), (2**15 + 1, True)]
)
def test_one_byte_pools_beyond_32_bit_offsets_are_refused(blocks, fits):
    """Pools of 2**31 to 2**32 elements; a block has 2**17 elements here."""
    pool = jax.ShapeDtypeStruct((4, blocks, 8, 32, 128), "int8")
    scales = jax.ShapeDtypeStruct(pool.shape[:-1], "bfloat16")
    q = jax.ShapeDtypeStruct((2, 32, 128), "bfloat16")
    numbers = [jax.ShapeDtypeStruct(shape, "int32") for shape in ((), (2, 2), (2,))]

    def run(q, pool, scales, *numbers):
        return triton_decode.paged_decode(
            q, pool, pool, *numbers, scale=1.0, k_scales=scales, v_scales=scales
        )

    if fits:
        assert jax.eval_shape(run, q, pool, scales, *numbers).shape == q.shape
    else:
        with pytest.raises(ValueError, match="one-byte elements"):
            jax.eval_shape(run, q, pool, scales, *numbers)
