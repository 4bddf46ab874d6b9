"""What lives on the device between steps, and the static part of every program."""

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
    """What lives on the device between steps. `M` slots; a running request owns one."""

    cache: KVCache
    tokens: jax.Array  # [M], the last token sampled in the slot, whose key is not yet written
    lengths: jax.Array  # [M], tokens of the slot whose keys are in the pool


@dataclass(frozen=True)
class StepConfig:
    """The static part of every program.

    max_logprobs: how many of the best tokens are reported with their log probabilities.
    processed: sampled tokens' log probabilities are those of the distribution drawn from.
    batch_invariant: nothing is chosen by the number of rows that would change their results.
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
        """What the model's layers are made of."""
        return layer_ops(self.implementation, self.mesh, self.batch_invariant)


def make_state(
    config: StepConfig, num_blocks: int, block_size: int, kv_dtype: str, max_num_seqs: int
) -> EngineState:
    """An empty pool and empty slots. kv_dtype: a float's name, "int8" or "fp8"."""
    zeros = jax.jit(
        partial(jnp.zeros, max_num_seqs, jnp.int32), out_shardings=sharding(config.mesh)
    )
    cache = make_cache(config.model, num_blocks, block_size, kv_dtype, config.mesh)
    return EngineState(cache=cache, tokens=zeros(), lengths=zeros())
