"""The forward program: run the tokens of a step through the layers."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from pagedjax import models
from pagedjax.layers.attention import AttentionInputs
from pagedjax.step.batch import StepBatch
from pagedjax.step.state import EngineState, StepConfig
from pagedjax.weights.params import Params


def forward(
    config: StepConfig, params: Params, state: EngineState, batch: StepBatch
) -> tuple[EngineState, jax.Array, jax.Array]:
    """Run the model on the step's tokens; write their keys and values, and the slots' lengths.

    Returns the state, the hidden states of the ragged section [Sp, E] and those of the logit rows
    [R, E], in float32 and before the final norm.
    """
    take = partial(jnp.take, mode="clip")  # padding slots read arbitrary values and write nothing
    decode_positions = take(state.lengths, batch.decode_slots)
    tokens = jnp.concatenate([take(state.tokens, batch.decode_slots), batch.tokens])
    positions = jnp.concatenate([decode_positions, batch.positions])
    hidden, cache = models.family(config.model.model_type).forward(
        config.model, params, tokens, positions, state.cache, config.ops,
        _attention_inputs(state, batch, decode_positions),
    )  # fmt: skip
    lengths = state.lengths.at[batch.decode_slots].set(decode_positions + 1, mode="drop")
    row_lengths = positions[batch.logit_rows] + 1
    lengths = lengths.at[batch.logit_slots].set(row_lengths, mode="drop")
    chunks = hidden[batch.decode_slots.shape[0] :]
    return EngineState(cache, state.tokens, lengths), chunks, hidden[batch.logit_rows]


def logits_of(config: StepConfig, params: Params, hidden: jax.Array) -> jax.Array:
    """Compute float32 logits [R, V] from hidden states [R, E]."""
    return models.family(config.model.model_type).logits(config.model, params, hidden, config.ops)


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
