"""The XLA ops against the reference, with poison wherever they must not look."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import reference, xla_decode, xla_prefill, xla_write
from tests.support.paged_pools import LAYER, problem, queries, starts

TOLERANCE = {"float32": 2e-6, "bfloat16": 1e-2}
SHAPES = pytest.mark.parametrize(
    ("width", "group", "size", "dtype"),
    [(8, 1, 1, "float32"), (8, 3, 4, "float32"), (8, 4, 16, "float32"), (64, 1, 16, "float32"),
     (64, 4, 1, "float32"), (64, 3, 256, "float32"), (64, 3, 4, "bfloat16"),
     (8, 4, 16, "bfloat16")],
)  # fmt: skip
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
KV_HEADS = 2

decode = jax.jit(xla_decode.paged_decode, static_argnames="scale")
prefill = jax.jit(xla_prefill.paged_prefill, static_argnames="scale")


def edges(size):
    """Context lengths at the edges of a page of `size`, and one beyond a group of pages."""
    return [0, 1, max(size - 1, 0), size, size + 1, 130]


def assert_close(got, wanted, dtype):
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(
        np.asarray(got, np.float32), wanted, rtol=tolerance, atol=tolerance * max(1, wanted.max())
    )


# -- decode ---------------------------------------------------------------------------------------


@SHAPES
def test_decode_agrees_with_the_reference(width, group, size, dtype):
    arguments = problem(edges(size), KV_HEADS, size, width, seed=1).cast(dtype)
    q = queries(6, KV_HEADS * group, width, dtype)
    wanted = reference.paged_decode(q, *arguments, scale=width**-0.5)
    assert_close(decode(q, *arguments, scale=width**-0.5), wanted, dtype)


def test_decode_of_many_rows_agrees_with_the_reference():
    """More rows than are attended at once, in no order of length."""
    lengths = np.random.default_rng(2).integers(0, 60, xla_decode.ROWS_AT_ONCE * 2 + 3).tolist()
    arguments = problem(lengths, KV_HEADS, 4, 8, seed=2).cast("float32")
    q = queries(len(lengths), 6, 8, "float32")
    wanted = reference.paged_decode(q, *arguments, scale=0.3)
    assert_close(decode(q, *arguments, scale=0.3), wanted, "float32")


@pytest.mark.parametrize("lengths", [[0, 0, 0], [0, 5, 0]])
def test_decode_rows_without_context_are_zero(lengths):
    """B63."""
    arguments = problem(lengths, KV_HEADS, 4, 8, seed=3).cast("float32")
    out = np.asarray(decode(queries(len(lengths), 6, 8, "float32"), *arguments, scale=1.0))
    empty = np.array(lengths) == 0
    np.testing.assert_array_equal(out[empty], 0)


def test_decode_reads_the_layer_it_is_told():
    arguments = problem([5, 9], KV_HEADS, 4, 8, seed=4).cast("float32")
    pools = [np.roll(pool, 1, axis=0) for pool in arguments[:2]]
    q = queries(2, 6, 8, "float32")
    moved = decode(q, *pools, np.int32(LAYER + 1), *arguments[3:], scale=1.0)
    np.testing.assert_array_equal(moved, decode(q, *arguments, scale=1.0))


def test_decode_averages_values_where_all_scores_are_very_negative():
    """B63."""
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
    """Bit for bit: other queries, other lengths, another place among the rows."""
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


@pytest.mark.parametrize("op", [xla_decode.paged_decode, xla_prefill.paged_prefill])
def test_products_are_in_float32_on_cpu_and_in_the_models_type_elsewhere(op):
    """On CPU only what is returned is rounded; a GPU's tensor cores take 16-bit operands."""
    arguments = problem([33, 140], KV_HEADS, 16, 64, seed=9).cast("bfloat16")
    if op is xla_prefill.paged_prefill:
        arguments = (*arguments, starts([1, 1]))
    q = queries(2, 6, 64, "bfloat16")
    run = jax.jit(partial(op, scale=0.125))
    exact = np.asarray(run(q.astype(jnp.float32), *arguments))
    np.testing.assert_array_equal(run(q, *arguments), exact.astype(jnp.bfloat16))
    lowered = {
        platform: run.trace(q, *arguments).lower(lowering_platforms=(platform,)).as_text()
        for platform in ("cpu", "cuda")
    }
    products = {
        platform: {tuple(re.findall(r"x([a-z]+\d+)>", line)) for line in text.splitlines()
                   if "dot_general" in line}
        for platform, text in lowered.items()
    }  # fmt: skip
    assert products == {"cpu": {("f32", "f32", "f32")}, "cuda": {("bf16", "bf16", "f32")}}


# -- prefill --------------------------------------------------------------------------------------


def ragged(size):
    """(context length, queries) at the edges: no query, one, a page, a tile and more, a resume."""
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
    spare = 34 - -(-length // 4)  # so that one compiled shape serves all lengths
    arguments = problem([length], KV_HEADS, 4, 8, seed=2, spare=spare).cast("float32")
    q = queries(130, 6, 8, "float32")
    wanted = reference.paged_prefill(q, *arguments, starts([length]), scale=0.3)
    assert_close(prefill(q, *arguments, starts([length]), scale=0.3), wanted, "float32")


@pytest.mark.parametrize("counts", [[0, 0, 0], [3, 0, 2], [0, 5, 0]])
def test_prefill_queries_of_no_row_are_zero(counts):
    arguments = problem([9] * len(counts), KV_HEADS, 4, 8, seed=3).cast("float32")
    q = queries(45, 6, 8, "float32")
    out = np.asarray(prefill(q, *arguments, starts(counts), scale=1.0))
    np.testing.assert_array_equal(out[sum(counts) :], 0)


def test_prefill_of_one_query_a_row_is_decode():
    lengths = [1, 5, 130, 16]
    arguments = problem(lengths, KV_HEADS, 4, 8, seed=4).cast("float32")
    q = queries(4, 6, 8, "float32")
    wanted = np.asarray(decode(q, *arguments, scale=1.0))
    assert_close(prefill(q, *arguments, starts([1] * 4), scale=1.0), wanted, "float32")


def test_a_query_does_not_see_the_keys_after_it():
    """Changing the last key of a prompt changes the last query's output and no other's."""
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
    """Bit for bit, in the same number of queries."""
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


# -- writes ---------------------------------------------------------------------------------------


def written(write, blocks, offsets):
    """A pool of sentinels after `write` has put distinct values there."""
    pool = np.full((3, 5, 2, 4, 8), -7, np.float32)
    values = np.arange(len(blocks) * 16, dtype=np.float32).reshape(-1, 2, 8)
    at = [np.array(each, np.int32) for each in (blocks, offsets)]
    return np.asarray(write(pool, np.int32(LAYER), *at, values))


@pytest.mark.parametrize(
    ("blocks", "offsets"),
    [([3], [2]), ([0, 4, 4], [0, 3, 0]), ([2, 5, 1], [1, 0, 3]), ([5, 5], [0, 3]),
     ([6, 2**31 - 1, 3], [0, 0, 0]), ([], [])],
    ids=["one", "edges", "padding", "only padding", "far padding", "nothing"],
)  # fmt: skip
def test_writes_agree_with_the_reference(blocks, offsets):
    """B59: blocks of N and more are dropped, and nothing but the named places changes."""
    got = written(jax.jit(xla_write.write_kv), blocks, offsets)
    np.testing.assert_array_equal(got, written(reference.write_kv, blocks, offsets))


def test_padding_changes_nothing():
    """B59, without the reference's word for it."""
    assert (written(jax.jit(xla_write.write_kv), [5, 5, -1], [0, 3, 2]) == -7).all()


def test_a_write_is_rounded_to_the_pools_dtype():
    pool = jnp.zeros((1, 2, 1, 2, 2), jnp.bfloat16)
    at = jnp.zeros(1, jnp.int32)
    out = xla_write.write_kv(pool, jnp.int32(0), at, at, jnp.full((1, 1, 2), 1 / 3))
    assert out.dtype == jnp.bfloat16 and out[0, 0, 0, 0, 0] == jnp.bfloat16(1 / 3)


# -- a pool of 80 GiB -----------------------------------------------------------------------------

POOL = (32, 80_000, 8, 16, 128)  # 39 GiB of bfloat16 for keys, and as much for values


def shaped(shape, dtype="int32"):
    return jax.ShapeDtypeStruct(shape, dtype)


def large(op):
    """The op applied to the large pool, to be traced and never run, and its arguments."""
    pool, layer = shaped(POOL, "bfloat16"), shaped(())
    if op == "write":
        values = shaped((64, 8, 128), "bfloat16")
        return xla_write.write_kv, (pool, layer, shaped((64,)), shaped((64,)), values)
    rows = (pool, pool, layer, shaped((64, 512)), shaped((64,)))
    if op == "decode":
        return partial(xla_decode.paged_decode, scale=1.0), (
            shaped((64, 32, 128), "bfloat16"),
            *rows,
        )
    q = shaped((256, 32, 128), "bfloat16")
    return partial(xla_prefill.paged_prefill, scale=1.0), (q, *rows, shaped((65,)))


def is_jaxpr(value):
    return hasattr(value, "eqns")


def shapes_in(jaxpr):
    """Shapes of all values of a jaxpr, those of inner ones included."""
    for equation in jaxpr.eqns:
        yield from (each.aval.shape for each in (*equation.invars, *equation.outvars))
        for value in jax.tree.leaves(equation.params, is_leaf=is_jaxpr):
            if is_jaxpr(value):
                yield from shapes_in(getattr(value, "jaxpr", value))


@pytest.mark.parametrize("op", ["write", "decode", "prefill"])
def test_an_op_takes_a_pool_of_more_elements_than_int32_counts(op):
    """B61."""
    function, arguments = large(op)
    assert np.prod(POOL, dtype=np.int64) > 2**31
    shape = POOL if op == "write" else arguments[0].shape
    assert jax.eval_shape(function, *arguments).shape == shape


@pytest.mark.parametrize("op", ["write", "decode", "prefill"])
def test_no_axis_of_a_large_pool_is_longer_than_int32_counts(op):
    """B61: pages and what is inside them stay apart, so that int32 indices suffice."""
    function, arguments = large(op)
    shapes = list(shapes_in(jax.make_jaxpr(function)(*arguments).jaxpr))
    assert POOL in shapes and max(max(shape, default=0) for shape in shapes) < 2**31


# -- what XLA makes of many layers ----------------------------------------------------------------


@pytest.mark.parametrize("op", ["decode", "prefill"])
def test_layers_call_one_copy_of_an_op_and_copy_no_pool(op):
    pool, q = shaped((3, 1024, 2, 16, 64), "float32"), shaped((4, 6, 64), "float32")
    rows = (shaped((4, 8)), shaped((4,)))
    if op == "prefill":
        rows += (shaped((5,)),)

    def layers(q, k_pool, v_pool, *rows):
        at = jnp.arange(4, dtype=jnp.int32)
        for layer in range(3):
            k_pool = xla_write.write_kv(k_pool, jnp.int32(layer), at, at, q[:, :2])
            function = xla_decode.paged_decode if op == "decode" else xla_prefill.paged_prefill
            q = function(q, k_pool, v_pool, jnp.int32(layer), *rows, scale=0.1)
        return q, k_pool

    compiled = jax.jit(layers, donate_argnums=1).lower(q, pool, pool, *rows).compile()
    # Inlined at once, each layer's would be compiled for itself, and nothing would be called.
    assert len(re.findall(r" call\(.*inlineable=\"xla_late\"", compiled.as_text())) == 3
    assert compiled.memory_analysis().temp_size_in_bytes < np.prod(pool.shape) * 4
