"""The jitted programs of a step, as pure functions: forward, then sample or score.

Two programs run back to back: `forward` (layers, shaped by tokens) and `sample` (head and draw,
shaped by rows of logits), so their shapes add up instead of multiplying. The state is donated to
each; params are arguments and never captured.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jax.sharding import Mesh

from pagedjax import models, sampler
from pagedjax.attention import AttentionInputs, write_and_attend
from pagedjax.batch import StepBatch
from pagedjax.config import ModelConfig
from pagedjax.kv_cache import KVCache, make_cache
from pagedjax.mesh import sharding
from pagedjax.params import Params
from pagedjax.sampler import SamplingArrays

SCORE_ROWS = 64  # rows whose logits exist at one time while scoring


@struct.dataclass
class EngineState:
    """What lives on the device between steps. `M` slots; a running request owns one."""

    cache: KVCache
    tokens: jax.Array  # [M], the last token sampled in the slot, whose key is not yet written
    lengths: jax.Array  # [M], tokens of the slot whose keys are in the pool


@dataclass(frozen=True)
class StepConfig:
    """The static part of every program."""

    model: ModelConfig
    mesh: Mesh
    implementation: str


def make_state(
    config: StepConfig, num_blocks: int, block_size: int, kv_dtype: str, max_num_seqs: int
) -> EngineState:
    """An empty pool and empty slots. kv_dtype: a float's name, "int8" or "fp8"."""
    zeros = jax.jit(
        partial(jnp.zeros, max_num_seqs, jnp.int32), out_shardings=sharding(config.mesh)
    )
    cache = make_cache(config.model, num_blocks, block_size, kv_dtype, config.mesh)
    return EngineState(cache=cache, tokens=zeros(), lengths=zeros())


def forward(
    config: StepConfig, params: Params, state: EngineState, batch: StepBatch
) -> tuple[EngineState, jax.Array, jax.Array]:
    """Compute the step's tokens: keys into the pool, lengths by slot.

    Returns the state, the hidden states of the ragged section [Sp, E] and those of the logit rows
    [R, E], float32 and before the last norm.
    """
    take = partial(jnp.take, mode="clip")  # padding slots read something, and write nothing
    decode_positions = take(state.lengths, batch.decode_slots)
    tokens = jnp.concatenate([take(state.tokens, batch.decode_slots), batch.tokens])
    positions = jnp.concatenate([decode_positions, batch.positions])
    attend = partial(write_and_attend, implementation=config.implementation, mesh=config.mesh)
    hidden, cache = models.family(config.model.model_type).forward(
        config.model, params, tokens, positions, state.cache, attend,
        _attention_inputs(state, batch, decode_positions),
    )  # fmt: skip
    lengths = state.lengths.at[batch.decode_slots].set(decode_positions + 1, mode="drop")
    row_lengths = positions[batch.logit_rows] + 1
    lengths = lengths.at[batch.logit_slots].set(row_lengths, mode="drop")
    chunks = hidden[batch.decode_slots.shape[0] :]
    return EngineState(cache, state.tokens, lengths), chunks, hidden[batch.logit_rows]


def sample(
    config: StepConfig,
    greedy: bool,
    params: Params,
    slot_tokens: jax.Array,  # [M]
    slot_lengths: jax.Array,  # [M]
    hidden: jax.Array,  # [R, E]
    arrays: SamplingArrays,
) -> tuple[jax.Array, jax.Array]:  # [M], [R]
    """Choose a token per logit row and put it into its slot. `greedy`: all rows are."""
    logits = models.family(config.model.model_type).logits(config.model, params, hidden)
    if greedy:
        tokens = sampler.greedy(logits)
    else:
        lengths = jnp.take(slot_lengths, arrays.slots, mode="clip")
        tokens = sampler.sample(logits, arrays, lengths - arrays.num_prompt)
    return slot_tokens.at[arrays.slots].set(tokens, mode="drop"), tokens


def score(
    config: StepConfig,
    params: Params,
    hidden: jax.Array,  # [Sp, E]
    targets: jax.Array,  # [Sp]
) -> jax.Array:  # [Sp] float32
    """Log probability of `targets[i]` as the token after token i, in slices of rows.

    No `[Sp, V]` array exists: a slice of logits is reduced before the next is made.
    """
    logits_of = partial(models.family(config.model.model_type).logits, config.model, params)

    def one_slice(rows: tuple[jax.Array, jax.Array]) -> jax.Array:
        logits = logits_of(rows[0])
        chosen = jnp.take_along_axis(logits, rows[1][:, None], axis=-1)[:, 0]
        return chosen - jax.nn.logsumexp(logits, axis=-1)

    size = min(SCORE_ROWS, hidden.shape[0])
    padding = -hidden.shape[0] % size
    hidden = jnp.pad(hidden, ((0, padding), (0, 0))).reshape(-1, size, hidden.shape[-1])
    scores = lax.map(one_slice, (hidden, jnp.pad(targets, (0, padding)).reshape(-1, size)))
    return scores.reshape(-1)[: targets.shape[0]]


def rank(
    config: StepConfig,
    count: int,
    params: Params,
    hidden: jax.Array,  # [R, E]
) -> tuple[jax.Array, jax.Array]:  # [R, count] ids and float32 log probabilities
    """The `count` most likely next tokens of each row, best first, lower ids first on ties."""
    logits = models.family(config.model.model_type).logits(config.model, params, hidden)
    best, ids = lax.top_k(logits, count)
    return ids, best - jax.nn.logsumexp(logits, axis=-1, keepdims=True)


def _attention_inputs(
    state: EngineState, batch: StepBatch, decode_positions: jax.Array
) -> AttentionInputs:
    block_size, num_blocks = state.cache.block_size, state.cache.num_blocks
    token = jnp.arange(batch.tokens.shape[0], dtype=jnp.int32)
    real = token < batch.query_starts[-1]
    row = jnp.searchsorted(batch.query_starts[1:], token, side="right", method="compare_all")
    is_slot = batch.decode_slots < state.tokens.shape[0]

    def block_of(tables: jax.Array, positions: jax.Array, valid: jax.Array) -> jax.Array:
        at = jnp.take_along_axis(tables, (positions // block_size)[:, None], 1, mode="clip")[:, 0]
        return jnp.where(valid, at, num_blocks)

    tables = jnp.take(batch.tables, row, axis=0, mode="clip")
    return AttentionInputs(
        decode_tables=batch.decode_tables,
        decode_lens=jnp.where(is_slot, decode_positions + 1, 0),
        tables=batch.tables,
        context_lens=batch.context_lens,
        query_starts=batch.query_starts,
        write_blocks=jnp.concatenate(
            [
                block_of(batch.decode_tables, decode_positions, is_slot),
                block_of(tables, batch.positions, real),
            ]
        ),
        write_offsets=jnp.concatenate([decode_positions, batch.positions]) % block_size,
    )
