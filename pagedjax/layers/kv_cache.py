"""The paged KV pool on the device, and the computation of its size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import Mesh, PartitionSpec

from pagedjax.architecture.model_config import ModelConfig
from pagedjax.config import EngineConfig
from pagedjax.devices.mesh import sharding
from pallas_kernels.formats import FORMATS, SCALE_DTYPE

POOL_SPEC = PartitionSpec(None, None, "tp")  # kv heads are sharded over the mesh
CPU_POOL_BYTES = 4 << 30


@struct.dataclass
class KVCache:
    """Stacked pools for keys and values of all layers; passed whole, never sliced by layer.

    One-byte formats (`pallas_kernels.formats`) have one scale per token and kv head.
    """

    k: jax.Array  # [L, N, K, T, D]
    v: jax.Array  # [L, N, K, T, D]
    k_scales: jax.Array | None = None  # [L, N, K, T] bfloat16
    v_scales: jax.Array | None = None  # [L, N, K, T] bfloat16

    @property
    def num_blocks(self) -> int:
        """N, the number of blocks in the pool."""
        return self.k.shape[1]

    @property
    def block_size(self) -> int:
        """T, the number of tokens per block."""
        return self.k.shape[3]


def block_bytes(config: ModelConfig, block_size: int, dtype: str) -> int:
    """Bytes per block: keys, values and scales of all layers and kv heads.

    dtype: the KV cache dtype: a float dtype's name, "int8" or "fp8".
    """
    vectors = 2 * config.num_layers * config.num_kv_heads * block_size
    if dtype not in FORMATS:
        return vectors * config.head_dim * jnp.dtype(dtype).itemsize
    element = jnp.dtype(FORMATS[dtype].dtype).itemsize
    return vectors * (config.head_dim * element + SCALE_DTYPE.itemsize)


def pool_shape(
    config: ModelConfig, num_blocks: int, block_size: int
) -> tuple[int, int, int, int, int]:
    """Shape of the key pool and of the value pool: `[L, N, K, T, D]`."""
    return (config.num_layers, num_blocks, config.num_kv_heads, block_size, config.head_dim)


def make_cache(
    config: ModelConfig, num_blocks: int, block_size: int, dtype: str, mesh: Mesh
) -> KVCache:
    """Allocate a zeroed pool, sharded over `mesh`. dtype: as in `block_bytes`."""
    shape, placed = pool_shape(config, num_blocks, block_size), sharding(mesh, POOL_SPEC)

    def empty(shape: tuple[int, ...], dtype: Any) -> jax.Array:
        return jax.jit(partial(jnp.zeros, shape, dtype), out_shardings=placed)()

    if dtype not in FORMATS:
        return KVCache(k=empty(shape, dtype), v=empty(shape, dtype))
    stored, scales = FORMATS[dtype].dtype, shape[:-1]
    return KVCache(
        k=empty(shape, stored), v=empty(shape, stored),
        k_scales=empty(scales, SCALE_DTYPE), v_scales=empty(scales, SCALE_DTYPE),
    )  # fmt: skip


def copy_blocks(
    cache: KVCache,
    sources: jax.Array,  # [C]
    targets: jax.Array,  # [C]; N for padding
) -> KVCache:
    """Copy whole blocks in all layers; all sources are read before any target is written."""

    def copied(pool: jax.Array) -> jax.Array:
        blocks = jnp.take(pool, sources, axis=1, mode="clip")
        return pool.at[:, targets].set(blocks, mode="drop")

    return jax.tree.map(copied, cache)


def choose_num_blocks(
    config: EngineConfig,
    bytes_per_block: int,
    max_model_len: int,
    device: jax.Device,
    temporary_bytes: Callable[[], int],
) -> int:
    """N: `num_blocks` if set, else the blocks that fit `kv_cache_bytes`, else the device's memory.

    The memory available on a GPU is its memory limit (not the currently free memory) times
    `gpu_memory_utilization`, less the bytes in use and the temporaries of the largest step. On a
    CPU it is 4 GiB, or less if `max_num_seqs` requests of full length need less.
    """
    if config.num_blocks is not None:
        return config.num_blocks
    available = config.kv_cache_bytes
    if available is None and device.platform == "cpu":
        blocks_per_request = -(-max_model_len // config.block_size)
        full = config.max_num_seqs * blocks_per_request * bytes_per_block
        available = min(CPU_POOL_BYTES, full)
    elif available is None:
        memory = device.memory_stats()
        if not memory or "bytes_limit" not in memory:
            raise ValueError(
                f"{device.device_kind} does not report its memory; set num_blocks or kv_cache_bytes"
            )
        limit = int(memory["bytes_limit"] * config.gpu_memory_utilization)
        available = limit - memory["bytes_in_use"] - temporary_bytes()
    if available < bytes_per_block:
        raise MemoryError(
            f"{available} bytes are left for the KV pool and one block takes {bytes_per_block}; "
            "raise gpu_memory_utilization or kv_cache_bytes, or free memory"
        )
    return available // bytes_per_block


def addressable_blocks(config: EngineConfig, num_blocks: int, block_elements: int) -> int:
    """The largest one-byte pool of at most `num_blocks` blocks that Pallas' Triton can address.

    The lowering uses 64-bit offsets for arrays of more than 2**32 bytes and signed 32-bit offsets
    for all others (`_compute_offsets_from_indices`), which overflow past 2**31 elements. Only
    arrays of one-byte elements can lie in between.

    block_elements: elements of one block's keys on one device.

    Raises ValueError if the config asks for a number of blocks that cannot be addressed.
    """
    if not 2**31 < num_blocks * block_elements <= 2**32:
        return num_blocks
    most, least = 2**31 // block_elements, 2**32 // block_elements + 1
    if config.num_blocks is not None:
        raise ValueError(
            f"num_blocks={num_blocks} makes pools of {num_blocks * block_elements} bytes, and the "
            f"Pallas kernels cannot address pools of {config.kv_cache_dtype!r} between 2**31 and "
            f"2**32 bytes; use at most {most} or at least {least} blocks, or attention='xla'"
        )
    return most
