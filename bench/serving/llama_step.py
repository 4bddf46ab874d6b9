"""The engine's forward program for LLaMA-3-8B with abstract arrays, to be compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pagedjax.config import ModelConfig, RopeScaling
from pagedjax.layers.kv_cache import POOL_SPEC, KVCache, pool_shape
from pagedjax.models import llama
from pagedjax.step.batch import StepBatch
from pagedjax.step.forward import forward
from pagedjax.step.state import EngineState, StepConfig
from pagedjax.weights.params import build_tree

# The pool has 20 GiB each for keys and values, and 32 layers even if fewer are compiled.
MODEL = ModelConfig(
    vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_layers=32, num_heads=32,
    num_kv_heads=8, head_dim=128, max_position_embeddings=8192, rope=RopeScaling(theta=500_000.0),
)  # fmt: skip
BLOCK_SIZE, NUM_BLOCKS, TABLE_WIDTH, SLOTS = 16, 20480, 512, 64
POOL_BYTES = 20 << 30

bfloat16 = partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
int32 = partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
POOL = bfloat16(pool_shape(MODEL, NUM_BLOCKS, BLOCK_SIZE))


class Program(NamedTuple):
    """Arguments of `aot.compile_for`."""

    fn: Callable[..., Any]
    avals: tuple[Any, ...]
    donate: int | tuple[int, ...] = ()
    shardings: Any = None


def step(
    implementation: str, decode_rows: int, tokens: int, layers: int, slots: int = SLOTS
) -> Callable[[Mesh], Program]:
    """Return a builder of a step with these numbers of decode rows and prefill tokens.

    Shapes are those of `batch.Packer`.
    """

    def build(mesh: Mesh) -> Program:
        config = replace(MODEL, num_layers=layers)
        rules = llama.param_rules(config)
        params = build_tree({rule.path: bfloat16(rule.shape) for rule in rules})
        state = EngineState(KVCache(POOL, POOL), int32((slots,)), int32((slots,)))
        chunks = min(slots, tokens)
        batch = StepBatch(
            decode_slots=int32((decode_rows,)),
            decode_tables=int32((decode_rows, TABLE_WIDTH)),
            tokens=int32((tokens,)),
            positions=int32((tokens,)),
            query_starts=int32((chunks + 1,)),
            context_lens=int32((chunks,)),
            tables=int32((chunks, TABLE_WIDTH)),
            logit_rows=int32((decode_rows,)),
            logit_slots=int32((decode_rows,)),
        )
        specs = (
            build_tree({rule.path: rule.spec for rule in rules}),
            EngineState(KVCache(POOL_SPEC, POOL_SPEC), P(), P()),
            P(),
        )
        run = partial(forward, StepConfig(config, mesh, implementation))
        return Program(run, (params, state, batch), donate=1, shardings=specs)

    return build
