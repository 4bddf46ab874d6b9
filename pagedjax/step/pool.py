"""The size of the KV pool, and its allocation."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax

from pagedjax.config import EngineConfig
from pagedjax.layers.kv_cache import addressable_blocks, block_bytes, choose_num_blocks, pool_shape
from pagedjax.step.state import EngineState, StepConfig, make_state
from pallas_kernels.formats import FORMATS


def pool_blocks(
    config: EngineConfig,
    step: StepConfig,
    max_model_len: int,
    kv_dtype: str,
    temporary_bytes: Callable[[], int],
) -> int:
    """N of the pool, see `choose_num_blocks`; a kernel's largest index may limit it further."""
    one = block_bytes(step.model, config.block_size, kv_dtype)
    device = step.mesh.devices.flat[0]
    num_blocks = choose_num_blocks(config, one, max_model_len, device, temporary_bytes)
    if step.implementation == "xla" or kv_dtype not in FORMATS:
        return num_blocks
    elements = math.prod(pool_shape(step.model, 1, config.block_size)) // step.mesh.size
    return addressable_blocks(config, num_blocks, elements)


def allocate_state(
    step: StepConfig, num_blocks: int, block_size: int, kv_dtype: str, max_num_seqs: int
) -> EngineState:
    """Allocate an empty state; MemoryError, with the remedy, if it does not fit the device."""
    try:
        return make_state(step, num_blocks, block_size, kv_dtype, max_num_seqs)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        size = num_blocks * block_bytes(step.model, block_size, kv_dtype)
        raise MemoryError(
            f"a KV pool of {size} bytes does not fit: does another process hold the device? "
            "Lower gpu_memory_utilization, kv_cache_bytes or num_blocks"
        ) from error
