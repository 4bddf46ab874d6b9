"""One-byte formats: stored bits, writes, and temporaries of the XLA ops."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import formats, reference, xla_write
from tests.support.paged_pools import LAYER, queries
from tests.support.xla_ops import decode, prefill

SIZE, WIDTH = 4, 8
KINDS = pytest.mark.parametrize("kind", ["int8", "fp8"])
STORED = {"int8": np.int8, "fp8": np.uint8}


def written(write, kind, blocks, offsets, values):
    """Pool and scales, prefilled with 7 and -7, after `write` has stored the values."""
    pool, scales = np.full((3, 5, 2, SIZE, WIDTH), 7, STORED[kind]), np.full((3, 5, 2, SIZE), -7.0)
    at = [np.array(each, np.int32) for each in (blocks, offsets)]
    found = write(pool, scales.astype(jnp.bfloat16), np.int32(LAYER), *at, values)
    return [np.asarray(each) for each in found]


def assert_written(got, wanted):
    """Check that two pools and their scales are bit-identical."""
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
    """Writes to block N and above are dropped, and nothing else changes."""
    values = queries(len(blocks), 2, WIDTH, dtype, seed=9)
    got = written(jax.jit(xla_write.write_quantised), kind, blocks, offsets, values)
    wanted = written(reference.write_quantised, kind, blocks, offsets, values)
    assert_written(got, wanted)


@KINDS
def test_quantised_writes_of_all_magnitudes_agree_with_the_reference(kind):
    """Zeros, and vectors of magnitudes 1e-20 to 1e20, 20 x 2 in one write."""
    values = queries(20, 2, WIDTH, "float32", seed=10)
    values *= 10.0 ** np.linspace(-20, 20, 40, dtype=np.float32).reshape(20, 2, 1)
    values[3], values[7, 1] = 0, -0.0
    places = np.arange(20) // SIZE, np.arange(20) % SIZE
    got = written(jax.jit(xla_write.write_quantised), kind, *places, values)
    wanted = written(reference.write_quantised, kind, *places, values)
    assert_written(got, wanted)
    assert (got[1][LAYER, 0, :, 3] == 0).all() and np.isfinite(got[1]).all()


@KINDS
def test_a_stored_vector_is_close_to_the_given_one(kind):
    """The error is at most half a step in int8 and half of the last of 4 bits in fp8, plus the
    rounding of the scale."""
    values = queries(50, 2, 64, "float32", seed=11)
    stored, scales = formats.quantise(values, kind)
    error = np.abs(
        formats.decode(stored, jnp.float32) * scales.astype(jnp.float32)[..., None] - values
    )
    largest = np.abs(values).max(axis=-1, keepdims=True)
    bound = largest / 127 / 2 if kind == "int8" else np.maximum(np.abs(values) / 16, largest / 2e5)
    assert (error <= bound * 1.01).all()


@KINDS
def test_a_vector_with_a_nan_has_a_nan_scale(kind):
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
    """Values are rounded to nearest, ties to even; the 448 makes the scale 1."""
    stored, scales = jax.jit(formats.quantise, static_argnums=1)(np.float32([value, 448.0]), "fp8")
    assert (int(stored[0]), float(scales)) == (bits, 1.0)


def test_every_fp8_byte_decodes_to_its_value():
    every = np.arange(256, dtype=np.uint8)
    wanted = every.view(jnp.float8_e4m3fn).astype(np.float32)
    for dtype in ("float32", "bfloat16", "float16"):
        got = np.asarray(formats.decode(jnp.asarray(every), jnp.dtype(dtype)), np.float32)
        np.testing.assert_array_equal(got, wanted)


@KINDS
@pytest.mark.parametrize("op", ["decode", "prefill", "write"])
def test_temporaries_do_not_grow_with_a_one_byte_pool(op, kind):
    """XLA on CPU would convert a whole pool of dtype fp8, so the pool holds bytes."""

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
