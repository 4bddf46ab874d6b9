"""The building blocks of a layer against numpy in float64."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pagedjax.config import RopeScaling
from pagedjax.layers import linear as products
from pagedjax.layers.elementwise import rms_norm, swiglu
from pagedjax.layers.linear import linear
from pagedjax.layers.rope import apply_rope, rope_frequencies, rope_tables

DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}


def normal(seed, *shape, dtype="float32"):
    """Random float64 values that `dtype` represents exactly."""
    values = np.random.default_rng(seed).normal(size=shape)
    return values.astype(np.float32).astype(jnp.dtype(dtype)).astype(np.float64)


def device(values, dtype="float32"):
    return jnp.asarray(values.astype(np.float32), dtype)


# -- norm, products, activation -------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_rms_norm(scale, dtype):
    x, weight = scale * normal(1, 3, 10), normal(2, 10, dtype=dtype)
    wanted = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * weight
    got = np.asarray(rms_norm(device(x), device(weight, dtype), 1e-5), np.float64)
    np.testing.assert_allclose(got, wanted, rtol=TOLERANCE[dtype], atol=1e-6)


@DTYPES
def test_rms_norm_has_the_dtype_of_the_weight(dtype):
    assert rms_norm(device(normal(1, 3, 10)), device(normal(2, 10), dtype), 1e-5).dtype == dtype


def test_rms_norm_of_zeros_is_zero():
    got = rms_norm(jnp.zeros((2, 4)), jnp.ones(4), 1e-6)
    np.testing.assert_array_equal(got, np.zeros((2, 4)))


@DTYPES
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("outputs", "inputs"), [((5,), (7,)), ((2, 3, 4), (7,)), ((5,), (2, 3, 4)), ((2, 5), (3, 4))]
)
def test_linear(outputs, inputs, biased, dtype):
    """Weights have shape `[*out, *in]`; a bias is added in float32."""
    x, weight = normal(1, 6, *inputs, dtype=dtype), normal(2, *outputs, *inputs, dtype=dtype)
    bias = normal(3, *outputs, dtype=dtype) if biased else np.zeros(outputs)
    wanted = np.tensordot(x, weight, [range(1, x.ndim), range(len(outputs), weight.ndim)]) + bias
    got = linear(device(x), device(weight, dtype), device(bias, dtype) if biased else None)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@DTYPES
@pytest.mark.parametrize("rows", [2, 8, 20, 64, 65])
@pytest.mark.parametrize("instructions", [frozenset(), frozenset({"avx2"})])
def test_products_are_equal_with_weights_on_either_side(rows, instructions, dtype, monkeypatch):
    monkeypatch.setattr(products, "instruction_sets", lambda: instructions)
    x, weight = normal(1, rows, 40, dtype=dtype), normal(2, 3, 5, 40, dtype=dtype)
    got = linear(device(x, dtype), device(weight, dtype))
    np.testing.assert_allclose(got, np.tensordot(x, weight, [[1], [2]]), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("instructions", "least", "most"),
    [({"avx2"}, 8, 48), ({"avx2", "avx512f"}, 16, 32), (set(), 16, 32)],
)
def test_row_counts_for_which_bfloat16_weights_go_left(instructions, least, most):
    left = [n for n in range(200) if products._weights_go_left(n, jnp.bfloat16, instructions)]
    assert (left[0], left[-1], len(left)) == (least, most, most - least + 1)


@DTYPES
def test_linear_returns_float32(dtype):
    assert linear(device(normal(1, 2, 3)), device(normal(2, 4, 3), dtype)).dtype == jnp.float32


def test_swiglu_gates_with_the_first_half():
    pair = normal(1, 3, 2, 5) * 4
    wanted = pair[:, 0] / (1 + np.exp(-pair[:, 0])) * pair[:, 1]
    np.testing.assert_allclose(swiglu(device(pair)), wanted, rtol=1e-5)


# -- rotary embeddings ----------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("head_dim", [2, 8, 64])
def test_plain_frequencies(head_dim, theta):
    wanted = [theta ** (-2 * pair / head_dim) for pair in range(head_dim // 2)]
    np.testing.assert_allclose(rope_frequencies(RopeScaling(theta), head_dim), wanted, rtol=1e-6)


def test_llama3_keeps_blends_and_divides_the_frequencies():
    scaled = rope_frequencies(RopeScaling(500000.0, "llama3", 8.0, 1.0, 4.0, 8192), 16)
    ratio = scaled / rope_frequencies(RopeScaling(500000.0), 16)
    wanted = [1, 1, 1, 1, 0.371122, 0.125, 0.125, 0.125]
    np.testing.assert_allclose(ratio, wanted, rtol=2e-6)


@pytest.mark.parametrize("field", ["factor", "low_freq_factor", "high_freq_factor",
                                   "original_max_position_embeddings"])  # fmt: skip
def test_every_parameter_of_llama3_changes_the_frequencies(field):
    values = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 8192}  # fmt: skip

    def frequencies(**changes):
        return rope_frequencies(RopeScaling(500000.0, "llama3", **(values | changes)), 16)

    assert (frequencies() != frequencies(**{field: values[field] * 2})).any()


def test_linear_scaling_divides_every_frequency():
    scaled = rope_frequencies(RopeScaling(500.0, "linear", 4.0), 8)
    np.testing.assert_allclose(scaled * 4, rope_frequencies(RopeScaling(500.0), 8), rtol=1e-6)


def test_yarn_keeps_blends_and_divides_the_frequencies():
    """For theta 10000, D 64 and an original context of 2048, 32 turns are at pair 8.06 and one
    is at pair 20.1: the ramp goes from 8 to 21."""
    rope = RopeScaling(10000.0, "yarn", 16.0, original_max_position_embeddings=2048)
    ratio = rope_frequencies(rope, 64) / rope_frequencies(RopeScaling(), 64)
    ramp = np.clip((np.arange(32) - 8) / 13, 0, 1)
    np.testing.assert_allclose(ratio, 1 - ramp + ramp / 16, rtol=2e-6)


def test_the_attention_factor_multiplies_cosines_and_sines():
    plain, scaled = tables([3, 70]), tables([3, 70], attention_factor=1.25)
    for one, other in zip(plain, scaled, strict=True):
        np.testing.assert_allclose(other, one * 1.25, rtol=1e-6)


def tables(positions, head_dim=64, **options):
    frequencies = rope_frequencies(RopeScaling(), head_dim)
    return rope_tables(jnp.asarray(positions, jnp.int32), frequencies, **options)


def test_neighbouring_far_positions_have_different_tables():
    """The type bfloat16 cannot represent 257."""
    cos, sin = tables([256, 257])
    assert (cos[0] != cos[1]).any() and (sin[0] != sin[1]).any()


@pytest.mark.parametrize("position", [0, 1, 257, 4095])
def test_tables_are_close_to_float64(position):
    angles = position * 10000.0 ** (-np.arange(0, 64, 2) / 64)
    cos, sin = tables([position])
    np.testing.assert_allclose(cos[0], np.cos(angles), atol=1e-3)
    np.testing.assert_allclose(sin[0], np.sin(angles), atol=1e-3)


def test_tables_are_float32_for_a_bfloat16_model():
    """For any dtype of the frequencies."""
    frequencies = rope_frequencies(RopeScaling(), 8).astype(ml_dtypes.bfloat16)
    cos, sin = rope_tables(jnp.arange(3, dtype=jnp.int32), frequencies)
    assert (cos.dtype, sin.dtype) == (jnp.float32, jnp.float32)


def test_rotation_multiplies_complex_pairs():
    """Element i pairs with element i + D/2; positions are unsorted and do not start at 0."""
    x, positions = normal(1, 4, 3, 8), np.array([7, 0, 130, 1])
    angles = np.outer(positions, 10000.0 ** (-np.arange(0, 8, 2) / 8))
    turned = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * angles)[:, None]
    wanted = np.concatenate([turned.real, turned.imag], axis=-1)
    got = apply_rope(device(x), *tables(positions, 8))
    np.testing.assert_allclose(got, wanted, atol=1e-4)


def test_position_zero_is_not_rotated():
    x = normal(1, 2, 3, 8)
    np.testing.assert_array_equal(apply_rope(device(x), *tables([0, 0], 8)), device(x))


def test_scores_of_rotated_vectors_depend_only_on_the_distance():
    q, k = normal(1, 1, 1, 8), normal(2, 1, 1, 8)

    def score(query, key):
        rotated = [apply_rope(device(x), *tables([at], 8)) for x, at in ((q, query), (k, key))]
        return float((rotated[0] * rotated[1]).sum())

    assert score(105, 100) == pytest.approx(score(5, 0), abs=1e-4)
    assert score(105, 100) != pytest.approx(score(100, 105), abs=1e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_in_float32_are_never_rounded_to_tf32(dtype):
    """Checked in the lowered program, because only a GPU would use TF32."""
    x, weight = jnp.ones((4, 8), dtype), jnp.ones((2, 3, 8), dtype)
    text = jax.jit(linear).lower(x, weight).as_text()
    assert ("precision = [HIGHEST, HIGHEST]" in text) == (dtype == "float32")
