"""XLA writes of keys and values against the reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import reference, xla_write
from tests.support.paged_pools import LAYER


def written(write, blocks, offsets):
    """The result of writing distinct values to a pool filled with -7."""
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
    """Writes to block N and above are dropped, and nothing else changes."""
    got = written(jax.jit(xla_write.write_kv), blocks, offsets)
    np.testing.assert_array_equal(got, written(reference.write_kv, blocks, offsets))


def test_padding_changes_nothing():
    """Checked without the reference."""
    assert (written(jax.jit(xla_write.write_kv), [5, 5, -1], [0, 3, 2]) == -7).all()


def test_a_write_is_rounded_to_the_pools_dtype():
    pool = jnp.zeros((1, 2, 1, 2, 2), jnp.bfloat16)
    at = jnp.zeros(1, jnp.int32)
    out = xla_write.write_kv(pool, jnp.int32(0), at, at, jnp.full((1, 1, 2), 1 / 3))
    assert out.dtype == jnp.bfloat16 and out[0, 0, 0, 0, 0] == jnp.bfloat16(1 / 3)
