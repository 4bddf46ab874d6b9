"""The Mosaic decode kernel in its interpreter, with race detection, against the reference."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic_gpu.interpret import interpret_pallas_call as interpreter
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import mosaic_decode, reference
from tests.support.paged_pools import GARBAGE, LAYER, problem

TOLERANCE = 4e-3  # of the largest output: weights are rounded to 8 bits before the product with V
WATCHED = plgpu.InterpretGPUParams(detect_races=True)


@pytest.fixture(autouse=True)
def fresh_interpreter():
    """Reset the interpreter, whose state after an exception would make later tests fail."""
    yield
    interpreter.reset_gpu_interpret_mode_state()


def edges(size):
    """Context lengths around a page of `size`, and one of three kernel blocks."""
    return [0, 1, size - 1, size, size + 1, 130]


def queries(rows, heads, width, dtype="bfloat16"):
    values = np.random.default_rng(0).normal(size=(rows, heads, width))
    return values.astype(np.float32).astype(jnp.dtype(dtype))


@cache
def compiled(**options):
    return jax.jit(partial(mosaic_decode.paged_decode, interpret=WATCHED, **options))


def decode(q, *arguments, scale=0.125, **options):
    """Run the kernel, check that no race was found, and return its output."""
    out = np.asarray(compiled(scale=scale, **options)(q, *arguments))
    assert not interpreter.get_races().races_found
    return out


def assert_close(got, wanted):
    error = np.abs(got.astype(np.float32) - wanted).max()
    assert error <= TOLERANCE * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("kv_heads", "group", "size", "width", "dtype", "options"),
    [(2, 4, 16, 128, "bfloat16", {}),
     (1, 1, 8, 64, "float16", {}),
     (1, 8, 256, 64, "bfloat16", {"window": 100}),
     (1, 3, 32, 256, "bfloat16", {"soft_cap": 5.0}),
     (2, 3, 64, 64, "bfloat16", {"splits": 2, "soft_cap": 3.0, "window": 66})],
)  # fmt: skip
def test_agrees_with_the_reference(kv_heads, group, size, width, dtype, options):
    arguments = problem(edges(size), kv_heads, size, width, seed=1).cast(dtype)
    q = queries(6, kv_heads * group, width, dtype)
    got = decode(q, *arguments, scale=width**-0.5, **options)
    known = {name: value for name, value in options.items() if name != "splits"}
    wanted = reference.paged_decode(q, *arguments, scale=width**-0.5, **known)
    assert got.dtype == dtype
    assert_close(got, wanted)
    np.testing.assert_array_equal(got[0], 0)


@pytest.mark.parametrize("window", [1, 17, 200])
def test_pages_outside_the_window_are_not_read(window):
    """Their keys and values and their table entries may be invalid."""
    size, lengths = 32, [32, 130, 149]
    k_pool, v_pool, layer, tables, lens = problem(lengths, 1, size, 64, seed=2).cast("bfloat16")
    q = queries(3, 2, 64)
    for row, length in enumerate(lengths):
        gone = max(0, length - window) // size
        for pool in (k_pool, v_pool):
            pool[LAYER, tables[row, :gone]] = np.nan
        tables[row, :gone] = np.resize(GARBAGE, gone)
    got = decode(q, k_pool, v_pool, layer, tables, lens, window=window)
    wanted = reference.paged_decode(
        q, k_pool, v_pool, layer, tables, lens, scale=0.125, window=window
    )
    assert_close(got, wanted)


def test_splits_and_stages_change_only_the_rounding():
    arguments = problem([0, 129, 330], 1, 64, 64, seed=3).cast("bfloat16")
    q = queries(3, 2, 64)
    wanted = reference.paged_decode(q, *arguments, scale=0.125)
    one = decode(q, *arguments, splits=1, stages=1)
    assert_close(one, wanted)
    np.testing.assert_array_equal(decode(q, *arguments, splits=1, stages=3), one)
    assert_close(decode(q, *arguments, splits=4), wanted)  # of 0, 3 and 6 blocks


def test_runs_and_neighbours_change_no_bit():
    k_pool, v_pool, layer, tables, lens = problem([33, 5, 140], 1, 32, 64, seed=4).cast("bfloat16")
    q = queries(3, 2, 64)
    first = decode(q, k_pool, v_pool, layer, tables, lens, splits=2)
    again = decode(q, k_pool, v_pool, layer, tables, lens, splits=2)
    np.testing.assert_array_equal(again, first)
    order = np.array([2, 2, 0])
    moved = decode(q[order], k_pool, v_pool, layer, tables[order], lens[order], splits=2)
    np.testing.assert_array_equal(moved, first[order])


def test_rows_without_context_are_zero():
    arguments = problem([0, 0], 1, 64, 64, seed=5).cast("bfloat16")
    np.testing.assert_array_equal(decode(queries(2, 1, 64), *arguments, splits=2), 0)


def test_reads_the_given_layer():
    arguments = problem([5, 19], 1, 16, 64, seed=6).cast("bfloat16")
    pools = [np.roll(pool, 1, axis=0) for pool in arguments[:2]]
    q = queries(2, 1, 64)
    moved = decode(q, *pools, np.int32(LAYER + 1), *arguments[3:])
    np.testing.assert_array_equal(moved, decode(q, *arguments))


def test_averages_values_where_all_scores_are_very_negative():
    k_pool, v_pool, *rest = problem([70], 1, 32, 64, seed=7).cast("bfloat16")
    k_pool[np.isfinite(k_pool)] = -1e3
    out = decode(np.ones((1, 2, 64), jnp.bfloat16), k_pool, v_pool, *rest, splits=2)
    q = np.zeros((1, 2, 64), np.float32)
    assert_close(out, reference.paged_decode(q, k_pool, v_pool, *rest, scale=1.0))


def test_default_splits_fill_the_gpu_and_are_not_too_short():
    splits = mosaic_decode._default_splits
    assert [splits(pairs, 2**16, None) for pairs in (8, 256, 264, 1000)] == [64, 2, 1, 1]
    assert [splits(8, tokens, None) for tokens in (16, 256, 511, 512, 4096)] == [1, 1, 1, 2, 16]
    assert splits(8, 2**16, 1024) == 4


# -- lowering for a GPU ---------------------------------------------------------------------------


def shaped(shape, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(shape, dtype)


def arguments_of(pool=(32, 40_000, 8, 16, 128), heads=32, dtype="bfloat16"):
    """Abstract arguments; the default pool has more than 2**31 elements."""
    return (
        shaped((32, heads, pool[4]), dtype), shaped(pool, dtype), shaped(pool, dtype),
        shaped((), "int32"), shaped((32, 512), "int32"), shaped((32,), "int32"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pool", "heads", "dtype", "options"),
    [((32, 40_000, 8, 16, 128), 32, "bfloat16", {}),
     ((32, 100, 8, 8, 64), 24, "float16", {"window": 100}),
     ((32, 100, 8, 256, 256), 512, "bfloat16", {"soft_cap": 30.0, "splits": 4})],
    ids=["large", "small", "wide"],
)  # fmt: skip
def test_lowers_for_a_gpu(pool, heads, dtype, options):
    """Layouts, swizzles and TMA boxes are consistent; the interpreter does not check them."""
    function = partial(mosaic_decode.paged_decode, scale=1.0, **options)
    traced = jax.jit(function).trace(*arguments_of(pool, heads, dtype))
    assert "mosaic_gpu" in traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [({"dtype": "float32"}, {}, "float32.*supported.*bfloat16, float16"),
     ({"dtype": "int8"}, {}, "int8.*supported.*bfloat16, float16"),
     ({}, {"k_scales": shaped((1,)), "v_scales": shaped((1,))}, "scales.*supported.*bfloat16"),
     ({"pool": (1, 2, 8, 16, 80)}, {}, "width 80.*supported.*64, 128, 256"),
     ({"pool": (1, 2, 8, 4, 64)}, {}, "pages of 4 .*supported.*8, 16, 32, 64, 128, 256"),
     ({"pool": (1, 2, 8, 24, 64)}, {}, "pages of 24 .*supported.*8, 16, 32, 64, 128, 256"),
     ({"heads": 36}, {}, "36 query heads on 8 .*supported: 1 to 64"),
     ({"heads": 520}, {}, "520 query heads on 8 .*supported: 1 to 64"),
     ({}, {"window": 0}, "window 0.*supported"),
     ({}, {"soft_cap": 0.0}, "soft_cap 0.0.*supported"),
     ({}, {"splits": 0}, "splits 0.*supported"),
     ({}, {"stages": 6}, "stages 6.*supported.*1 to 5")],
)  # fmt: skip
def test_unsupported_arguments_are_refused(change, options, said):
    with pytest.raises((NotImplementedError, ValueError), match=said):
        mosaic_decode.paged_decode(*arguments_of(**change), scale=1.0, **options)


def test_refuses_one_byte_pools_with_floating_queries():
    q, _, _, *rest = arguments_of()
    pool = shaped((1, 2, 8, 16, 128), "uint8")
    with pytest.raises(NotImplementedError, match="uint8.*supported: bfloat16, float16"):
        mosaic_decode.paged_decode(q, pool, pool, *rest, scale=1.0)
