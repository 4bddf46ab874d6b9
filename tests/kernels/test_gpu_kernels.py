"""Every kernel compiled on the attached GPU, against the reference, on poisoned pools.

Without a GPU, `test_triton_kernels` and `test_mosaic_decode` interpret the same cases. This file
needs only jax, numpy and pytest: `python -m pytest -m gpu tests/kernels/test_gpu_kernels.py`.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import (
    mosaic_decode,
    reference,
    tiles,
    triton_add_norm,
    triton_decode,
    triton_prefill,
    triton_rope_write,
    xla_decode,
    xla_prefill,
    xla_write,
)
from pallas_kernels.formats import SCALE_DTYPE
from tests.support.kernel_cases import TOLERANCE, KernelCase, decode_cases, prefill_cases
from tests.support.layer_cases import CASES, check_add_norm, check_rope_write
from tests.support.paged_pools import problem, queries, starts

pytestmark = pytest.mark.gpu

# Cases of the XLA ops differ in the pool's dtype; the Mosaic kernel supports fewer configurations.
XLA_CASES = [KernelCase(128, pool, 16, 4) for pool in ("float32", "bfloat16", "int8", "fp8")]
MOSAIC_CASES = [
    KernelCase(128, "bfloat16", 16, 4),
    KernelCase(64, "bfloat16", 8, 1),
    KernelCase(64, "bfloat16", 256, 3, window=40),
    KernelCase(128, "bfloat16", 64, 8, soft_cap=5.0),
    KernelCase(256, "bfloat16", 32, 3, window=40, soft_cap=5.0),
]


def each(cases):
    return pytest.mark.parametrize("case", cases, ids=str)


def described():
    return tiles.device_of(jax.devices()[0])


def assert_right(op, arguments, options, wanted, dtype):
    """Check dtype, closeness to the reference, and that a second run is bit-identical."""
    on_device = jax.tree.map(jnp.asarray, arguments)
    scales = {name: jnp.asarray(options.pop(name)) for name in list(options) if "scales" in name}
    run = jax.jit(partial(op, **options))
    got = np.asarray(run(*on_device, **scales))
    assert got.dtype == arguments[0].dtype
    error = np.abs(got.astype(np.float32) - wanted).max() / np.abs(wanted).max()
    assert error <= TOLERANCE[dtype]
    np.testing.assert_array_equal(np.asarray(run(*on_device, **scales)), got)


def decode(op, case, **own):
    arguments, scales = case.arguments(ragged=False)
    wanted = reference.paged_decode(*arguments, **case.options, **scales)
    assert_right(op, arguments, {**case.options, **scales, **own}, wanted, case.dtype)


def prefill(op, case, **own):
    arguments, scales = case.arguments(ragged=True)
    wanted = reference.paged_prefill(*arguments, **case.options, **scales)
    assert_right(op, arguments, {**case.options, **scales, **own}, wanted, case.dtype)


@each(decode_cases(full=False))
def test_triton_decode(case):
    """An error below 5e-6 in float32 shows that no product is rounded to TF32."""
    own = case.decode_options() | {"tiles": case.tiles(described())}
    decode(triton_decode.paged_decode, case, **own)


@each(prefill_cases(full=False))
def test_triton_prefill(case):
    prefill(triton_prefill.paged_prefill, case, device=described())


@each(MOSAIC_CASES)
def test_mosaic_decode(case):
    if described().capability[0] != 9:
        pytest.skip("needs a Hopper GPU")
    decode(mosaic_decode.paged_decode, case)


@each(XLA_CASES)
def test_xla_decode(case):
    decode(xla_decode.paged_decode, case)


@each(XLA_CASES)
def test_xla_prefill(case):
    prefill(xla_prefill.paged_prefill, case)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_quantised_writes_store_the_same_bytes(kind):
    """Bytes may differ by one step of the format, where a quotient is near a rounding boundary."""
    dtype = {"int8": np.int8, "fp8": np.uint8}[kind]
    pool, scales = np.zeros((2, 4, 2, 8, 64), dtype), np.zeros((2, 4, 2, 8), SCALE_DTYPE)
    blocks, offsets = np.array([0, 3, 4, 1], np.int32), np.array([7, 0, 2, 5], np.int32)
    values = queries(4, 2, 64, "bfloat16")
    wanted = reference.write_quantised(pool, scales, 1, blocks, offsets, values)
    given = map(jnp.asarray, (pool, scales, np.int32(1), blocks, offsets, values))
    got = [np.asarray(out) for out in jax.jit(xla_write.write_quantised)(*given)]
    wide = [each.astype(np.float32) for each in (got[1], wanted[1])]
    np.testing.assert_allclose(*wide, rtol=2.0**-7)
    assert np.abs(got[0].astype(np.int32) - wanted[0].astype(np.int32)).max() <= 1


def test_a_long_context_in_many_splits():
    """One row, in as many splits as `tiles` chooses for this device."""
    made = problem([5000], 8, 16, 128, seed=3).cast("bfloat16")
    arguments = [queries(1, 32, 128, "bfloat16"), *made]
    wanted = reference.paged_decode(*arguments, scale=0.09)
    options = {"scale": 0.09, "device": described()}
    assert_right(triton_decode.paged_decode, arguments, options, wanted, "bfloat16")


def test_a_prompt_of_many_tiles():
    made = problem([700, 300], 2, 16, 128, seed=4).cast("bfloat16")
    arguments = [queries(800, 8, 128, "bfloat16"), *made, starts([600, 200])]
    wanted = reference.paged_prefill(*arguments, scale=0.09)
    options = {"scale": 0.09, "device": described()}
    assert_right(triton_prefill.paged_prefill, arguments, options, wanted, "bfloat16")


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_triton_rope_write(case):
    def run(*given, dtype):
        kernel = jax.jit(partial(triton_rope_write.rope_write, dtype=dtype), donate_argnums=3)
        return jax.tree.map(np.array, kernel(*jax.tree.map(jnp.asarray, given)))

    check_rope_write(run, case)


@pytest.mark.parametrize("parts", [1, 8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [8, 576, 4096, 16384])
def test_triton_add_norm(width, dtype, parts):
    run = jax.jit(partial(triton_add_norm.add_norm, eps=1e-5))
    check_add_norm(lambda *given: map(np.asarray, run(*given)), width, dtype, parts)
