"""Bytes and flops that a case needs, by arithmetic, and the measured rates of the device.

Bytes are the minimum for the result: each row's keys and values once, their scales, the queries and
the output. Page tables, partial results and repeated reads are not counted, so that GB/s compares
paths: a path that moves more bytes shows fewer GB/s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from bench.attention import device_timer
from bench.attention.shapes import Case
from pallas_kernels.formats import FORMATS, SCALE_DTYPE

H200_BYTES_PER_SECOND = 4.8e12  # from the data sheet
QUERY = jnp.dtype("bfloat16")
GPU_COPY_BYTES, CPU_COPY_BYTES = 1 << 30, 256 << 20
GPU_SQUARE, CPU_SQUARE = 8192, 1024


@dataclass(frozen=True)
class Work:
    """Bytes and flops of one call."""

    kv_bytes: int
    scale_bytes: int
    query_bytes: int  # queries and output
    flops: int  # of unmasked keys; a multiply-add counts as two

    @property
    def bytes(self) -> int:
        """All bytes that must be moved."""
        return self.kv_bytes + self.scale_bytes + self.query_bytes

    @property
    def intensity(self) -> float:
        """Flops per byte."""
        return self.flops / self.bytes


def work(case: Case, dtype: str) -> Work:
    """Compute bytes and flops. dtype: of the pool, one of `shapes.DTYPES`."""
    heads = case.heads
    vectors = 2 * sum(case.contexts) * heads.num_kv_heads
    pairs = sum(
        count * context - count * (count - 1) // 2  # causal mask; the last query sees all keys
        for context, count in zip(case.contexts, case.queries, strict=True)
    )
    return Work(
        kv_bytes=vectors * heads.width * pool_dtype(dtype).itemsize,
        scale_bytes=vectors * scale_itemsize(dtype),
        query_bytes=2 * sum(case.queries) * heads.num_heads * heads.width * QUERY.itemsize,
        flops=4 * pairs * heads.num_heads * heads.width,
    )


def pool_dtype(dtype: str) -> Any:
    """Return the dtype of the pool's elements."""
    return jnp.dtype(FORMATS[dtype].dtype if dtype in FORMATS else "bfloat16")


def scale_itemsize(dtype: str) -> int:
    """Return the bytes of one vector's scale."""
    return SCALE_DTYPE.itemsize if dtype in FORMATS else 0


def copy_bandwidth(num_bytes: int, repeats: int) -> float:
    """Measure bytes per second, read and written, of a kernel that adds one to an array."""
    array = jnp.zeros(num_bytes // 4, jnp.uint32)
    add = jax.jit(lambda x: x + jnp.uint32(1), donate_argnums=0)
    timing = device_timer.measure(add, array, calls=1, repeats=repeats)
    return 2 * num_bytes / timing.median


def matmul_rate(side: int, repeats: int) -> float:
    """Measure flops per second of a bfloat16 product of two square matrices."""
    # Random numbers, because a GPU is faster on constants; scaled so that products stay finite.
    keys = jax.random.split(jax.random.key(0, impl="unsafe_rbg"))
    left, right = (jax.random.normal(key, (side, side), jnp.bfloat16) for key in keys)
    right = right * jnp.bfloat16(side**-0.5)
    multiply = jax.jit(lambda x: x @ right)
    timing = device_timer.measure(multiply, left, calls=1, repeats=repeats)
    return 2 * side**3 / timing.median


def measure_device(platform: str, repeats: int) -> dict[str, Any]:
    """Measure the device on a plain copy and a plain product, in this run."""
    on_cpu = platform == "cpu"
    num_bytes = CPU_COPY_BYTES if on_cpu else GPU_COPY_BYTES
    side = CPU_SQUARE if on_cpu else GPU_SQUARE
    return {
        "copy_bytes": num_bytes,
        "copy_bytes_per_second": copy_bandwidth(num_bytes, repeats),
        "matmul_side": side,
        "matmul_flops_per_second": matmul_rate(side, repeats),
    }
