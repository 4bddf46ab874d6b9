"""Windows, soft caps and one-byte pools of the XLA ops, against the reference."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import formats, reference, xla_decode, xla_prefill, xla_walk, xla_write
from tests.support.paged_pools import LAYER, problem, queries, starts

SIZE = 4
KV_HEADS, GROUP, WIDTH, SCALE = 2, 3, 8, 0.35
LENGTHS = [0, 1, SIZE, SIZE + 1, 130, 300, 41]
COUNTS = [0, 1, 2, 5, 130, 35, 0]  # of queries, in the prefills
STATIC = ("scale", "window", "soft_cap")
OPTIONS = pytest.mark.parametrize(
    ("window", "soft_cap", "kind"),
    [(1, None, None), (SIZE, None, None), (SIZE + 1, None, None), (40, None, None),
     (128, None, None), (1000, None, None), (None, 5.0, None), (None, 30.0, None),
     (None, None, "int8"), (None, None, "fp8"), (40, 5.0, "int8"), (SIZE + 1, 30.0, "fp8"),
     (1, None, "fp8"), (40, 5.0, None)],
)  # fmt: skip
KINDS = pytest.mark.parametrize("kind", ["int8", "fp8"])

decode = jax.jit(xla_decode.paged_decode, static_argnames=STATIC)
prefill = jax.jit(xla_prefill.paged_prefill, static_argnames=STATIC)


def given(made, window, soft_cap, kind, dtype="float32"):
    """Arguments and options of an op for these options."""
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
def test_short_floats_compute_from_a_pool_of_bytes(dtype, kind):
    made = problem(LENGTHS, KV_HEADS, SIZE, WIDTH, seed=3)
    arguments, options = given(made, 40, 5.0, kind, dtype)
    q = queries(len(LENGTHS), KV_HEADS * GROUP, WIDTH, dtype)
    got = decode(q, *arguments, **options)
    assert got.dtype == q.dtype
    assert_close(got, reference.paged_decode(q, *arguments, **options), 1e-2)


def test_decode_of_many_rows_agrees_with_the_reference():
    """More rows than are attended at once, so the last batch has rows of padding."""
    lengths = np.random.default_rng(4).integers(150, 400, xla_decode.ROWS_AT_ONCE + 3).tolist()
    arguments, options = given(problem(lengths, KV_HEADS, SIZE, WIDTH, seed=4), 40, None, "int8")
    q = queries(len(lengths), KV_HEADS * GROUP, WIDTH, "float32")
    assert_close(decode(q, *arguments, **options), reference.paged_decode(q, *arguments, **options))


# -- windows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["int8", "fp8", None])
def test_keys_before_every_window_may_hold_anything(kind):
    """Their pages may be another's by now, and their table entries no block at all."""
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
    """Bit for bit: a short neighbour makes a long row walk groups before its window."""
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
    """Bit for bit, in the same number of queries."""
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


# -- one-byte formats -----------------------------------------------------------------------------

STORED = {"int8": np.int8, "fp8": np.uint8}


def written(write, kind, blocks, offsets, values):
    """Pool and scales of sentinels after `write` has put the values there."""
    pool, scales = np.full((3, 5, 2, SIZE, WIDTH), 7, STORED[kind]), np.full((3, 5, 2, SIZE), -7.0)
    at = [np.array(each, np.int32) for each in (blocks, offsets)]
    found = write(pool, scales.astype(jnp.bfloat16), np.int32(LAYER), *at, values)
    return [np.asarray(each) for each in found]


def assert_written(got, wanted):
    """Bit for bit."""
    for ours, theirs in zip(got, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@KINDS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("blocks", "offsets"),
    [([3], [2]), ([0, 4, 4], [0, 3, 0]), ([2, 5, 1], [1, 0, 3]), ([5, 5], [0, 3]),
     ([6, 2**31 - 1, 3], [0, 0, 0]), ([], [])],
    ids=["one", "edges", "padding", "only padding", "far padding", "nothing"],
)  # fmt: skip
def test_quantised_writes_agree_with_the_reference(kind, dtype, blocks, offsets):
    """Blocks of N and more are dropped, and nothing but the named places changes."""
    values = queries(len(blocks), 2, WIDTH, dtype, seed=9)
    got = written(jax.jit(xla_write.write_quantised), kind, blocks, offsets, values)
    wanted = written(reference.write_quantised, kind, blocks, offsets, values)
    assert_written(got, wanted)


@KINDS
def test_quantised_writes_of_all_magnitudes_agree_with_the_reference(kind):
    """Zeros, and vectors of 1e-20 to 1e20; 20 x 2 of them in one write."""
    values = queries(20, 2, WIDTH, "float32", seed=10)
    values *= 10.0 ** np.linspace(-20, 20, 40, dtype=np.float32).reshape(20, 2, 1)
    values[3], values[7, 1] = 0, -0.0
    places = np.arange(20) // SIZE, np.arange(20) % SIZE
    got = written(jax.jit(xla_write.write_quantised), kind, *places, values)
    wanted = written(reference.write_quantised, kind, *places, values)
    assert_written(got, wanted)
    assert (got[1][LAYER, 0, :, 3] == 0).all() and np.isfinite(got[1]).all()


@KINDS
def test_a_stored_vector_is_near_the_written_one(kind):
    """int8: half a step of the largest; fp8: half of the last of 4 bits; and a scale's rounding."""
    values = queries(50, 2, 64, "float32", seed=11)
    stored, scales = formats.quantise(values, kind)
    error = np.abs(
        formats.decode(stored, jnp.float32) * scales.astype(jnp.float32)[..., None] - values
    )
    largest = np.abs(values).max(axis=-1, keepdims=True)
    bound = largest / 127 / 2 if kind == "int8" else np.maximum(np.abs(values) / 16, largest / 2e5)
    assert (error <= bound * 1.01).all()


@KINDS
def test_a_vector_with_a_nan_stays_one(kind):
    values = np.ones((1, 4), np.float32)
    values[0, 2] = np.nan
    stored, scales = formats.quantise(values, kind)
    assert np.isnan(scales.astype(jnp.float32)).all()


@pytest.mark.parametrize(
    ("value", "bits"),
    [(448.0, 0x7E), (-448.0, 0xFE), (0.0, 0x00), (-0.0, 0x80), (1.0, 0x38), (2.0**-6, 0x08),
     (2.0**-9, 0x01), (2.0**-10, 0x00), (17.0, 0x58), (19.0, 0x5A), (-432.0, 0xFE)],
)  # fmt: skip
def test_the_bits_of_an_fp8_value(value, bits):
    """Rounded to the nearest, ties to even; the 448 beside it makes the scale 1."""
    stored, scales = jax.jit(formats.quantise, static_argnums=1)(np.float32([value, 448.0]), "fp8")
    assert (int(stored[0]), float(scales)) == (bits, 1.0)


def test_every_byte_of_fp8_decodes_to_its_number():
    every = np.arange(256, dtype=np.uint8)
    wanted = every.view(jnp.float8_e4m3fn).astype(np.float32)
    for dtype in ("float32", "bfloat16", "float16"):
        got = np.asarray(formats.decode(jnp.asarray(every), jnp.dtype(dtype)), np.float32)
        np.testing.assert_array_equal(got, wanted)


@KINDS
@pytest.mark.parametrize("op", ["decode", "prefill", "write"])
def test_temporaries_do_not_grow_with_a_pool_of_bytes(op, kind):
    """XLA on CPU converts a whole pool of fp8 floats; it has to leave the bytes alone."""

    def temporaries(blocks):
        pool = jax.ShapeDtypeStruct((3, blocks, 2, 16, 64), STORED[kind])
        scales = jax.ShapeDtypeStruct(pool.shape[:-1], "bfloat16")
        shaped = partial(jax.ShapeDtypeStruct, dtype="int32")
        if op == "write":
            values = jax.ShapeDtypeStruct((8, 2, 64), "float32")
            function = jax.jit(xla_write.write_quantised, donate_argnums=(0, 1))
            arguments = (pool, scales, shaped(()), shaped((8,)), shaped((8,)), values)
            return function.lower(*arguments).compile().memory_analysis().temp_size_in_bytes
        q = jax.ShapeDtypeStruct((40, 6, 64), "float32")
        rows = (q, pool, pool, shaped(()), shaped((40, 20)), shaped((40,)))
        rows = rows if op == "decode" else (*rows, shaped((41,)))
        function = decode if op == "decode" else prefill
        lowered = function.lower(*rows, scale=0.1, k_scales=scales, v_scales=scales)
        return lowered.compile().memory_analysis().temp_size_in_bytes

    assert temporaries(64) == temporaries(4096)
