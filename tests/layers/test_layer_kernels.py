"""The kernels between a layer's matrix products, interpreted, against the reference; and products
computed in parts. `test_aot` compiles them for GPUs."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pagedjax.devices.mesh import make_mesh
from pagedjax.layers.linear import linear
from pagedjax.layers.ops import LayerOps, layer_ops
from pallas_kernels import triton_add_norm, triton_rope_write
from pallas_kernels.formats import quantise
from pallas_kernels.tiles import product_splits
from tests.support.layer_cases import (
    CASES,
    KV_HEADS,
    ONE_BYTE,
    arguments,
    bits,
    check_add_norm,
    check_rope_write,
    normal,
)
from tests.support.paged_pools import LAYERS


def rope_write(*given, **options):
    run = jax.jit(partial(triton_rope_write.rope_write, interpret=True, **options))
    return jax.tree.map(np.array, run(*given))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_rope_write_agrees_with_the_reference(case):
    check_rope_write(rope_write, case)


@pytest.mark.parametrize("kind", ONE_BYTE)
def test_kernels_quantise_as_xla_does(kind):
    """Bit-identical for subnormals, ties, the largest values, both signs, zeros and NaN."""
    steps = np.arange(-448, 449, dtype=np.float32) / 448 * (127 if kind == "int8" else 448)
    ties = np.concatenate([steps + 0.5, steps * 2.0**-9, (steps + 0.5) * 2.0**-9])
    random = normal(3, 40, 64) * np.float32(2.0) ** np.arange(-20, 20, dtype=np.float32)[:, None]
    rows = [np.resize(np.append(each, 448), 64) for each in np.array_split(ties, 60)]
    rows = np.stack([*rows, *random, np.zeros(64, np.float32)])
    run = jax.jit(jax.vmap(lambda row: triton_rope_write._quantised(row, kind)))
    got, scales = run(rows)
    wanted, wanted_scales = jax.jit(partial(quantise, name=kind))(rows)
    np.testing.assert_array_equal(bits(np.asarray(scales)), bits(np.asarray(wanted_scales)))
    if kind == "fp8":  # the sign of a zero does not matter
        got, wanted = (jnp.where(each == 0x80, 0, each) for each in (got, wanted))
    np.testing.assert_array_equal(got, wanted)
    for width in (64, 96):
        broken = np.ones((2, width), np.float32)
        broken[0, 5] = broken[1, :] = np.nan
        assert np.isnan(run(broken)[1].astype(np.float32)).all()


def test_only_the_given_layer_is_written():
    given = list(arguments(64, "float32", "float32", 8, 3, 1))
    given[4] = np.int32(LAYERS - 1)
    _, pools = rope_write(*given, dtype=jnp.float32)
    for pool in pools:
        assert np.isnan(pool[:-1]).all() and np.isfinite(pool[-1]).sum() == 4 * KV_HEADS * 64


@pytest.mark.parametrize("parts", [1, 3, 8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [8, 576, 1024, 4100])
def test_add_norm_agrees_with_the_reference(width, dtype, parts):
    run = jax.jit(partial(triton_add_norm.add_norm, eps=1e-5, interpret=True))
    check_add_norm(lambda *given: map(np.asarray, run(*given)), width, dtype, parts)


def test_add_norm_refuses_a_row_that_is_too_wide():
    x, weight = jax.ShapeDtypeStruct((2, 40000), "float32"), jnp.ones(40000)
    parts = jax.ShapeDtypeStruct((1, 2, 40000), "float32")
    with pytest.raises(ValueError, match="hidden_size=40000; supported by this kernel: up to"):
        jax.eval_shape(partial(triton_add_norm.add_norm, eps=1e-5), x, parts, weight)


# -- products in parts -----------------------------------------------------------------------------


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("outputs", "inputs"), [((4, 3, 16), (2048,)), ((96,), (4, 4, 256)), ((96,), (100,))]
)
def test_the_parts_of_a_product_add_up_to_it(outputs, inputs, dtype, biased):
    ops = layer_ops("pallas_interpret", make_mesh())
    x, weight = (
        jnp.asarray(normal(seed, *shape), dtype)
        for seed, shape in ((1, (3, *inputs)), (2, (*outputs, *inputs)))
    )
    bias = jnp.asarray(normal(3, *outputs), dtype) if biased else None
    parts = ops.product(x, weight, bias)
    assert parts.dtype == jnp.float32 and parts.shape[1:] == (3, *outputs)
    assert (parts.shape[0] > 1) == (inputs != (100,) and not biased)
    wanted = linear(x, weight, bias)
    np.testing.assert_allclose(parts.sum(axis=0), wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("rows", "outputs", "inputs", "cores", "splits"),
    [(32, 6144, 4096, 132, 4), (128, 6144, 4096, 132, 2), (256, 6144, 4096, 132, 1),
     (32, 4096, 14336, 132, 8), (256, 4096, 14336, 108, 2), (2048, 4096, 14336, 132, 1),
     (2, 576, 1536, 132, 2), (2, 960, 576, 132, 1)],
)  # fmt: skip
def test_products_of_few_rows_are_split(rows, outputs, inputs, cores, splits):
    assert product_splits(rows, outputs, inputs, cores) == splits


def test_every_implementation_has_every_op():
    for name in ("xla", "pallas", "pallas_interpret", "pallas_mosaic"):
        ops = layer_ops(name, make_mesh())
        assert isinstance(ops, LayerOps) and all(map(callable, ops))


@pytest.mark.parametrize("implementation", ["xla", "pallas_interpret"])
def test_add_norm_without_parts_is_the_norm_alone(implementation):
    x, weight = jnp.asarray(normal(1, 4, 24)), jnp.asarray(normal(2, 24))
    ops = layer_ops(implementation, make_mesh())
    total, normed = ops.add_norm(x, None, weight, 1e-5)
    np.testing.assert_array_equal(total, x)
    zeros = jnp.zeros((2, 4, 24))
    np.testing.assert_allclose(ops.add_norm(x, zeros, weight, 1e-5)[1], normed, rtol=1e-6)
