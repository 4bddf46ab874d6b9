"""The device state between steps, and the static configuration of the programs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import Mesh

from pagedjax.architecture.model_config import ModelConfig
from pagedjax.devices.mesh import sharding
from pagedjax.layers.kv_cache import KVCache, make_cache
from pagedjax.layers.ops import LayerOps, layer_ops
from pagedjax.sample.hooks import LogitsProcessor


@struct.dataclass
class EngineState:
    """The device state between steps. Each running request owns one of M slots."""

    cache: KVCache
    tokens: jax.Array  # [M], the last token drawn in the slot; its key is not in the pool yet
    lengths: jax.Array  # [M], number of the slot's tokens whose keys are in the pool


@dataclass(frozen=True)
class StepConfig:
    """The static configuration of the programs.

    max_logprobs: number of best tokens whose log probabilities are reported.
    processed: log probabilities of drawn tokens are those of the distribution drawn from.
    batch_invariant: no choice that changes a row's result depends on the number of rows.
    """

    model: ModelConfig
    mesh: Mesh
    implementation: str
    max_logprobs: int = 0
    processed: bool = False
    processor: LogitsProcessor | None = None
    batch_invariant: bool = False

    @property
    def ops(self) -> LayerOps:
        """The operations of the model's layers."""
        return layer_ops(self.implementation, self.mesh, self.batch_invariant)


def make_state(
    config: StepConfig, num_blocks: int, block_size: int, kv_dtype: str, max_num_seqs: int
) -> EngineState:
    """An empty pool and empty slots. kv_dtype: a float dtype's name, "int8" or "fp8"."""
    zeros = jax.jit(
        partial(jnp.zeros, max_num_seqs, jnp.int32), out_shardings=sharding(config.mesh)
    )
    cache = make_cache(config.model, num_blocks, block_size, kv_dtype, config.mesh)
    return EngineState(cache=cache, tokens=zeros(), lengths=zeros())
