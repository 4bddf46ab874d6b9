"""XLA ops with windows, soft caps and one-byte pools, against the reference."""

import jax
import numpy as np
import pytest

from pallas_kernels import reference, xla_decode, xla_walk
from tests.support.paged_pools import problem, queries, starts
from tests.support.xla_ops import decode, prefill

SIZE = 4
KV_HEADS, GROUP, WIDTH, SCALE = 2, 3, 8, 0.35
LENGTHS = [0, 1, SIZE, SIZE + 1, 130, 300, 41]
COUNTS = [0, 1, 2, 5, 130, 35, 0]  # queries per row of a prefill
OPTIONS = pytest.mark.parametrize(
    ("window", "soft_cap", "kind"),
    [(1, None, None), (SIZE, None, None), (SIZE + 1, None, None), (40, None, None),
     (128, None, None), (1000, None, None), (None, 5.0, None), (None, 30.0, None),
     (None, None, "int8"), (None, None, "fp8"), (40, 5.0, "int8"), (SIZE + 1, 30.0, "fp8"),
     (1, None, "fp8"), (40, 5.0, None)],
)  # fmt: skip


def given(made, window, soft_cap, kind, dtype="float32"):
    """Arguments and keyword options of an op, on a pool of `kind` or, if None, `dtype`."""
    options = {"scale": SCALE, "window": window, "soft_cap": soft_cap}
    if kind is None:
        return made.cast(dtype), options
    arguments, scales = made.quantise(kind)
    return arguments, options | scales


def assert_close(got, wanted, tolerance=5e-6):
    error = np.abs(np.asarray(got, np.float32) - wanted).max()
    assert error <= tolerance * np.abs(wanted).max()


# -- agreement ------------------------------------------------------------------------------------


@OPTIONS
def test_decode_agrees_with_the_reference(window, soft_cap, kind):
    made = problem(LENGTHS, KV_HEADS, SIZE, WIDTH, seed=1)
    arguments, options = given(made, window, soft_cap, kind)
    q = queries(len(LENGTHS), KV_HEADS * GROUP, WIDTH, "float32")
    assert_close(decode(q, *arguments, **options), reference.paged_decode(q, *arguments, **options))


@OPTIONS
def test_prefill_agrees_with_the_reference(window, soft_cap, kind):
    made = problem(LENGTHS, KV_HEADS, SIZE, WIDTH, seed=2)
    arguments, options = given(made, window, soft_cap, kind)
    q = queries(sum(COUNTS) + 3, KV_HEADS * GROUP, WIDTH, "float32")
    arguments.append(starts(COUNTS))
    wanted = reference.paged_prefill(q, *arguments, **options)
    assert_close(prefill(q, *arguments, **options), wanted)


@pytest.mark.parametrize("kind", ["int8", "fp8", None])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_queries_on_pools_of_every_kind(dtype, kind):
    made = problem(LENGTHS, KV_HEADS, SIZE, WIDTH, seed=3)
    arguments, options = given(made, 40, 5.0, kind, dtype)
    q = queries(len(LENGTHS), KV_HEADS * GROUP, WIDTH, dtype)
    got = decode(q, *arguments, **options)
    assert got.dtype == q.dtype
    assert_close(got, reference.paged_decode(q, *arguments, **options), 1e-2)


def test_decode_of_many_rows_agrees_with_the_reference():
    """More rows than ROWS_AT_ONCE, so the last batch of rows has padding."""
    lengths = np.random.default_rng(4).integers(150, 400, xla_decode.ROWS_AT_ONCE + 3).tolist()
    arguments, options = given(problem(lengths, KV_HEADS, SIZE, WIDTH, seed=4), 40, None, "int8")
    q = queries(len(lengths), KV_HEADS * GROUP, WIDTH, "float32")
    assert_close(decode(q, *arguments, **options), reference.paged_decode(q, *arguments, **options))


# -- windows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["int8", "fp8", None])
def test_keys_before_every_window_are_ignored(kind):
    """Their pages may belong to another request, and their table entries may be invalid."""
    window = 40
    whole = problem(LENGTHS, KV_HEADS, SIZE, WIDTH, seed=5)
    q = queries(sum(COUNTS), KV_HEADS * GROUP, WIDTH, "float32")
    for op, counts in ((decode, [1] * len(LENGTHS)), (prefill, COUNTS)):
        last = () if op is decode else (starts(counts),)
        first_query = np.array(LENGTHS) - counts
        cut = whole.forget([max(0, query + 1 - window) for query in first_query])
        used = q[: len(LENGTHS)] if op is decode else q
        before, after = (
            op(used, *arguments, *last, **options)
            for arguments, options in (given(each, window, None, kind) for each in (whole, cut))
        )
        np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("kind", ["fp8", None])
def test_decode_rows_do_not_change_with_their_neighbours(kind):
    """Results are bit-identical although a short neighbour makes a long row loop over groups of
    pages before its window."""
    lengths = [600, 5, 300, 17]
    made = problem(lengths, KV_HEADS, SIZE, 64, seed=6)
    (*pools, layer, tables, lens), options = given(made, 40, 30.0, kind)
    q = queries(4, KV_HEADS * GROUP, 64, "float32")
    together = np.asarray(decode(q, *pools, layer, tables, lens, **options))
    for order in ([0, 2], [2, 0], [0, 1]):
        pair = decode(q[order], *pools, layer, tables[order], lens[order], **options)
        np.testing.assert_array_equal(np.asarray(pair), together[order])


@pytest.mark.parametrize("kind", ["fp8", None])
def test_prefill_rows_do_not_change_with_their_neighbours(kind):
    """Results are bit-identical for the same total number of queries."""
    lengths, counts = [600, 5, 300, 17], np.array([33, 2, 40, 17])
    made = problem(lengths, KV_HEADS, SIZE, 64, seed=7)
    (*pools, layer, tables, lens), options = given(made, 40, 30.0, kind)
    q = queries(counts.sum(), KV_HEADS * GROUP, 64, "float32")
    first = starts(counts)
    together = np.asarray(prefill(q, *pools, layer, tables, lens, first, **options))
    order = np.array([2, 0])
    rows = np.concatenate([np.arange(first[row], first[row + 1]) for row in order])
    pair = prefill(q[np.resize(rows, len(q))], *pools, layer, tables[order], lens[order],
                   starts(counts[order]), **options)  # fmt: skip
    np.testing.assert_array_equal(np.asarray(pair)[: len(rows)], together[rows])


@pytest.mark.parametrize(
    ("lengths", "groups"),
    [([1000], 1), ([1020, 1030], 2), ([1000, 0], 1), ([0], 0), ([900, 10], 8)],
)
def test_groups_before_every_window_are_not_read(lengths, groups, monkeypatch):
    calls, gather = [], xla_walk.gather

    def watched(*arguments):
        jax.debug.callback(lambda: calls.append(1))
        return gather(*arguments)

    monkeypatch.setattr(xla_walk, "gather", watched)
    arguments = problem(lengths, KV_HEADS, SIZE, WIDTH, seed=8, spare=300).cast("float32")
    q = queries(len(lengths), KV_HEADS * GROUP, WIDTH, "float32")
    options = {"scale": SCALE, "window": 40}
    jax.block_until_ready(xla_decode.paged_decode(q, *arguments, **options))
    jax.effects_barrier()
    assert len(calls) == 2 * groups  # keys and values
