"""Test cases of the kernels between matrix products, interpreted and on a GPU."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_kernels import reference
from pallas_kernels.formats import SCALE_DTYPE
from tests.support.paged_pools import GARBAGE, LAYER, LAYERS, POISON
from tests.support.pairwise import pairwise

KV_HEADS, BLOCKS = 2, 9
ONE_BYTE = {"int8": "int8", "fp8": "uint8"}
# Rounding of stored numbers; one-byte formats are compared as integers.
ULP = {"float32": 2e-6, "bfloat16": 2.0**-7, "float16": 2.0**-10}
CASES = pairwise(
    {
        "width": [8, 64, 80, 96, 128, 256],
        "pool": ["float32", "bfloat16", "float16", *ONE_BYTE],
        "dtype": ["float32", "bfloat16"],
        "size": [8, 16, 64],
        "group": [1, 3, 4, 8],
        "parts": [1, 2, 5],
    }
)


def normal(seed: int, *shape: int) -> np.ndarray:
    """Random float32 numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def empty_pools(pool: str, size: int, width: int) -> list[np.ndarray]:
    """Pools filled with poison; elements that are not written must stay bit-identical."""
    shape = (LAYERS, BLOCKS, KV_HEADS, size, width)
    if pool not in ONE_BYTE:
        return [np.full(shape, np.nan, jnp.dtype(pool)) for _ in range(2)]
    stored = [np.full(shape, POISON[pool], ONE_BYTE[pool]) for _ in range(2)]
    return stored + [np.full(shape[:-1], np.nan, SCALE_DTYPE) for _ in range(2)]


def arguments(
    width: int, pool: str, dtype: str, size: int, group: int, parts: int, seed: int = 0
) -> tuple[Any, ...]:
    """Arguments for seven tokens on shuffled pages; the third and the last two are padding."""
    rng = np.random.default_rng(seed)
    blocks = rng.permutation(BLOCKS)[:7].astype(np.int32)
    blocks[[2, 5, 6]] = [BLOCKS, BLOCKS + 3, GARBAGE[-1]]
    offsets = rng.integers(0, size, 7).astype(np.int32)
    angles = rng.uniform(0, 500, (7, width // 2)).astype(np.float32)
    qkv = normal(seed + 1, parts, 7, KV_HEADS, group + 2, width)
    pools = tuple(empty_pools(pool, size, width))
    return qkv, np.cos(angles), np.sin(angles), pools, np.int32(LAYER), blocks, offsets


def check_rope_write(run: Callable[..., Any], case: dict[str, Any]) -> None:
    """Check the kernel `run` on numpy arrays; it must leave all other pool elements unchanged."""
    given, dtype = arguments(**case), jnp.dtype(case["dtype"])
    q, pools = run(*given, dtype=dtype)
    wanted_q, wanted_pools = reference.rope_write(*given, dtype=dtype)
    assert q.dtype == dtype
    assert_close(q, wanted_q, ULP[case["dtype"]])
    *_, before, _, blocks, offsets = given
    real = blocks < BLOCKS
    at = (LAYER, blocks[real], slice(None), offsets[real])
    for got, wanted, old in zip(pools, wanted_pools, before, strict=True):
        assert got.dtype == old.dtype
        if old.dtype in ONE_BYTE.values():
            difference = got[at].astype(np.int32) - wanted[at].astype(np.int32)
            assert np.abs(difference).max() <= 1
        else:
            assert_close(got[at], wanted[at], max(ULP[case["dtype"]], ULP[old.dtype.name]))
        got[at] = old[at]
        np.testing.assert_array_equal(bits(got), bits(old))


def check_add_norm(run: Callable[..., Any], width: int, dtype: str, parts: int) -> None:
    """Check the kernel `run`, which takes and returns numpy arrays."""
    x, added = 100 * normal(1, 5, width), normal(2, parts, 5, width)
    x[3], added[:, 3] = 0, 0
    weight = normal(3, width).astype(jnp.dtype(dtype))
    total, normed = run(x, added, weight)
    wanted_total, wanted = reference.add_norm(x, added, weight, 1e-5)
    assert (total.dtype, normed.dtype) == (np.float32, jnp.dtype(dtype))
    assert_close(total, wanted_total, 1e-6)
    assert_close(normed, wanted, ULP[dtype])
    np.testing.assert_array_equal(normed[3], 0)


def assert_close(got: np.ndarray, wanted: np.ndarray, rounding: float) -> None:
    """Assert that values agree within `rounding` times the largest value."""
    got, wanted = got.astype(np.float32), wanted.astype(np.float32)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=rounding * np.abs(wanted).max())


def bits(array: np.ndarray) -> np.ndarray:
    """The bits of an array, in which a NaN equals itself."""
    return array.view(f"uint{8 * array.itemsize}")
