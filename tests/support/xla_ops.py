"""The XLA ops, jitted with static options, and the shapes that they are tested on."""

import jax
import numpy as np
import pytest

from pallas_kernels import xla_decode, xla_prefill

KV_HEADS = 2
STATIC = ("scale", "window", "soft_cap")
SHAPES = pytest.mark.parametrize(
    ("width", "group", "size", "dtype"),
    [(8, 1, 1, "float32"), (8, 3, 4, "float32"), (8, 4, 16, "float32"), (64, 1, 16, "float32"),
     (64, 4, 1, "float32"), (64, 3, 256, "float32"), (64, 3, 4, "bfloat16"),
     (8, 4, 16, "bfloat16")],
)  # fmt: skip
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
TOLERANCE = {"float32": 2e-6, "bfloat16": 1e-2}

decode = jax.jit(xla_decode.paged_decode, static_argnames=STATIC)
prefill = jax.jit(xla_prefill.paged_prefill, static_argnames=STATIC)


def assert_close(got: jax.Array, wanted: np.ndarray, dtype: str) -> None:
    """Compare with the reference within the tolerance of `dtype`."""
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(
        np.asarray(got, np.float32), wanted, rtol=tolerance, atol=tolerance * max(1, wanted.max())
    )
