"""Compiled XLA ops: data types of products, pools beyond int32, one copy for all layers."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import xla_decode, xla_prefill, xla_write
from tests.support.paged_pools import problem, queries, starts
from tests.support.xla_ops import KV_HEADS


@pytest.mark.parametrize("op", [xla_decode.paged_decode, xla_prefill.paged_prefill])
def test_products_are_in_float32_on_cpu_and_in_the_models_type_elsewhere(op):
    """On CPU only the output is rounded; a GPU's tensor cores need 16-bit operands."""
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


# -- a pool of 80 GiB -----------------------------------------------------------------------------

POOL = (32, 80_000, 8, 16, 128)  # 39 GiB of bfloat16 each for keys and values


def shaped(shape, dtype="int32"):
    return jax.ShapeDtypeStruct(shape, dtype)


def large(op):
    """An op and abstract arguments with the large pool, for tracing."""
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
    """Shapes of all values of a jaxpr and its inner jaxprs."""
    for equation in jaxpr.eqns:
        yield from (each.aval.shape for each in (*equation.invars, *equation.outvars))
        for value in jax.tree.leaves(equation.params, is_leaf=is_jaxpr):
            if is_jaxpr(value):
                yield from shapes_in(getattr(value, "jaxpr", value))


@pytest.mark.parametrize("op", ["write", "decode", "prefill"])
def test_ops_accept_a_pool_with_more_elements_than_int32_holds(op):
    function, arguments = large(op)
    assert np.prod(POOL, dtype=np.int64) > 2**31
    shape = POOL if op == "write" else arguments[0].shape
    assert jax.eval_shape(function, *arguments).shape == shape


@pytest.mark.parametrize("op", ["write", "decode", "prefill"])
def test_no_axis_of_a_large_pool_exceeds_int32(op):
    """The page axis is never merged with others, so int32 indices suffice."""
    function, arguments = large(op)
    shapes = list(shapes_in(jax.make_jaxpr(function)(*arguments).jaxpr))
    assert POOL in shapes and max(max(shape, default=0) for shape in shapes) < 2**31


# -- many layers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["decode", "prefill"])
def test_layers_share_one_copy_of_an_op_and_copy_no_pool(op):
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
    # If the op were inlined early, there would be no calls, and each layer would compile its own.
    assert len(re.findall(r" call\(.*inlineable=\"xla_late\"", compiled.as_text())) == 3
    assert compiled.memory_analysis().temp_size_in_bytes < np.prod(pool.shape) * 4
