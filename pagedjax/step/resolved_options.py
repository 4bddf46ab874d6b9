"""Resolve an engine's options for one model on one device; refuse those that cannot work.

No weights are needed, so a loader can call this before it reads any.
"""

from __future__ import annotations

from typing import NamedTuple

import jax

from pagedjax.architecture.model_config import ModelConfig
from pagedjax.config import EngineConfig
from pagedjax.layers import attention

CPU_TOKEN_BUDGET = 512  # tokens per step; a larger step delays decode rows too long
GPU_TOKEN_BUDGET = 2048


class Settled(NamedTuple):
    """Options that EngineConfig leaves to the engine, resolved.

    max_model_len: most tokens of prompt and output. token_budget: most tokens per step.
    kv_dtype: type of the pool. implementation: of attention.
    """

    max_model_len: int
    token_budget: int
    kv_dtype: str
    implementation: str


def settle(config: EngineConfig, model: ModelConfig, dtype: str, device: jax.Device) -> Settled:
    """Resolve for params of type `dtype` on `device`; ValueError for an option that cannot work."""
    kv_dtype = dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
    asked = "xla" if config.batch_invariant else config.attention
    return Settled(
        _max_model_len(config, model),
        _token_budget(config, device),
        kv_dtype,
        attention.resolve(asked, device, config.block_size, kv_dtype, model.head_dim),
    )


def _max_model_len(config: EngineConfig, model: ModelConfig) -> int:
    most = model.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > most:
        raise ValueError(
            f"max_model_len={config.max_model_len} exceeds the {most} positions that the model "
            "supports"
        )
    return config.max_model_len or most


def _token_budget(config: EngineConfig, device: jax.Device) -> int:
    on_cpu = device.platform == "cpu"
    return config.max_num_batched_tokens or (CPU_TOKEN_BUDGET if on_cpu else GPU_TOKEN_BUDGET)
