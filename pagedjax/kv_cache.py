"""The paged pool of keys and values on the device, and the arithmetic of its size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import Mesh, PartitionSpec

from pagedjax.config import EngineConfig, ModelConfig
from pagedjax.mesh import sharding

POOL_SPEC = PartitionSpec(None, None, "tp")  # kv heads are divided over the mesh
CPU_POOL_BYTES = 4 << 30


@struct.dataclass
class KVCache:
    """One stacked pool each for keys and values; passed whole, never sliced by layer."""

    k: jax.Array  # [L, N, K, T, D]
    v: jax.Array  # [L, N, K, T, D]

    @property
    def num_blocks(self) -> int:
        """N."""
        return self.k.shape[1]

    @property
    def block_size(self) -> int:
        """T."""
        return self.k.shape[3]


def block_bytes(config: ModelConfig, block_size: int, dtype: str) -> int:
    """Bytes that one block takes: keys and values of all layers and kv heads."""
    per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return per_token * block_size * jnp.dtype(dtype).itemsize


def pool_shape(
    config: ModelConfig, num_blocks: int, block_size: int
) -> tuple[int, int, int, int, int]:
    """`[L, N, K, T, D]`."""
    return (config.num_layers, num_blocks, config.num_kv_heads, block_size, config.head_dim)


def make_cache(
    config: ModelConfig, num_blocks: int, block_size: int, dtype: str, mesh: Mesh
) -> KVCache:
    """An empty pool, divided over `mesh`."""
    shape = pool_shape(config, num_blocks, block_size)
    empty = jax.jit(partial(jnp.zeros, shape, dtype), out_shardings=sharding(mesh, POOL_SPEC))
    return KVCache(k=empty(), v=empty())


def copy_blocks(
    cache: KVCache,
    sources: jax.Array,  # [C]
    targets: jax.Array,  # [C]; N for padding
) -> KVCache:
    """Copy whole blocks in all layers; all are read before any is written."""

    def copied(pool: jax.Array) -> jax.Array:
        blocks = jnp.take(pool, sources, axis=1, mode="clip")
        return pool.at[:, targets].set(blocks, mode="drop")

    return KVCache(k=copied(cache.k), v=copied(cache.v))


def choose_num_blocks(
    config: EngineConfig,
    bytes_per_block: int,
    max_model_len: int,
    device: jax.Device,
    temporary_bytes: Callable[[], int],
) -> int:
    """N: `num_blocks`, else what fits `kv_cache_bytes`, else what fits the device.

    On a GPU that is its memory limit (not what happens to be free) times `gpu_memory_utilization`,
    less the bytes in use and the temporaries of the largest step. On a CPU it is 4 GiB, or less
    if `max_num_seqs` requests of full length need less.
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
        limit = int(memory["bytes_limit"] * config.gpu_memory_utilization)
        available = limit - memory["bytes_in_use"] - temporary_bytes()
    if available < bytes_per_block:
        raise MemoryError(
            f"{available} bytes are left for the KV pool and one block takes {bytes_per_block}; "
            "raise gpu_memory_utilization or kv_cache_bytes, or free memory"
        )
    return available // bytes_per_block
