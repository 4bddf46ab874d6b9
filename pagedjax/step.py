"""The jitted programs of a step, as pure functions: forward, then sample or score.

Two programs run back to back: `forward` (layers, shaped by tokens) and `sample` (head and draw,
shaped by rows of logits), so their shapes add up instead of multiplying. What a program changes of
the state is donated to it; params are arguments and never captured.
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
from pagedjax.attention import AttentionInputs
from pagedjax.batch import StepBatch
from pagedjax.config import ModelConfig
from pagedjax.hooks import LogitsContext, LogitsProcessor
from pagedjax.kv_cache import KVCache, make_cache
from pagedjax.layer_ops import LayerOps, layer_ops
from pagedjax.logprobs import TokenLogprobs, token_logprobs
from pagedjax.mesh import sharding
from pagedjax.params import Params
from pagedjax.penalties import Adjustments, Tables, adjust
from pagedjax.request import Variant
from pagedjax.sampler import SamplingArrays, processed_logits

SCORE_ROWS = 64  # rows whose logits exist at one time while scoring


@struct.dataclass
class EngineState:
    """What lives on the device between steps. `M` slots; a running request owns one."""

    cache: KVCache
    tokens: jax.Array  # [M], the last token sampled in the slot, whose key is not yet written
    lengths: jax.Array  # [M], tokens of the slot whose keys are in the pool


@struct.dataclass
class Drawn:
    """What `sample` returns. The last two are None where the variant has none."""

    slot_tokens: jax.Array  # [M]
    tokens: jax.Array  # [R]
    logprobs: TokenLogprobs | None
    tables: Tables | None


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


def make_tables(
    num_slots: int, max_len: int, vocab_size: int, extra: dict[str, jax.Array]
) -> Tables:
    """Tables in which no slot has anything; `extra` holds the default of each user array."""
    history = jnp.zeros((num_slots, max_len), jnp.int32)
    edits = jnp.zeros((num_slots, vocab_size), jnp.float32)
    repeated = {
        name: jnp.broadcast_to(each, (num_slots, *each.shape)) for name, each in extra.items()
    }
    return Tables(history, edits, repeated)


def put_history(
    tables: Tables,
    slot: jax.Array,  # scalar
    history: jax.Array,  # [X]
    extra: dict[str, jax.Array],
) -> Tables:
    """Begin a slot: its tokens so far and the user's arrays, no edits."""
    return Tables(
        history=tables.history.at[slot].set(history),
        edits=tables.edits.at[slot].set(0.0),
        extra={name: tables.extra[name].at[slot].set(each) for name, each in extra.items()},
    )


def put_edits(
    tables: Tables,
    slot: jax.Array,  # scalar
    edits: jax.Array,  # [V]
) -> Tables:
    """What the slot's next draws add to the logits."""
    return tables.replace(edits=tables.edits.at[slot].set(edits))  # type: ignore[attr-defined]


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
    """Logits [R, V], float32, of hidden states [R, E]."""
    return models.family(config.model.model_type).logits(config.model, params, hidden, config.ops)


def sample(
    config: StepConfig,
    variant: Variant,
    params: Params,
    slot_tokens: jax.Array,  # [M]
    slot_lengths: jax.Array,  # [M]
    hidden: jax.Array,  # [R, E]
    arrays: SamplingArrays,
    adjustments: Adjustments | None = None,
    tables: Tables | None = None,
) -> Drawn:
    """Choose a token per logit row and put it into its slot.

    variant: "greedy" when all rows are; "random"; "logprobs", which also reports log
    probabilities; "full", which has everything, penalties and user functions included.
    """
    raw = logits = logits_of(config, params, hidden)
    found = None
    if variant == "greedy":
        tokens = sampler.greedy(logits)
        return Drawn(slot_tokens.at[arrays.slots].set(tokens, mode="drop"), tokens, None, None)
    lengths = jnp.take(slot_lengths, arrays.slots, mode="clip")
    if variant == "full":
        assert tables is not None and adjustments is not None
        logits = _adjusted(config, logits, arrays, adjustments, tables, lengths)
    tokens = sampler.sample(logits, arrays, lengths - arrays.num_prompt)
    if variant in ("logprobs", "full"):
        assert adjustments is not None
        found = _logprobs(config, raw, logits, arrays, tokens, adjustments.logprobs.any())
    if tables is not None:
        history = tables.history.at[arrays.slots, lengths].set(tokens, mode="drop")
        tables = tables.replace(history=history)  # type: ignore[attr-defined]
    slot_tokens = slot_tokens.at[arrays.slots].set(tokens, mode="drop")
    return Drawn(slot_tokens, tokens, found, tables)


def _adjusted(
    config: StepConfig,
    logits: jax.Array,  # [R, V]
    arrays: SamplingArrays,
    adjustments: Adjustments,
    tables: Tables,
    lengths: jax.Array,  # [R]
) -> jax.Array:  # [R, V]
    processor = None
    if config.processor is not None:
        take = partial(jnp.take, indices=arrays.slots, axis=0, mode="clip")
        context = LogitsContext(
            tokens=take(tables.history), lengths=lengths, num_prompt=arrays.num_prompt,
            positions=lengths - arrays.num_prompt, extra=jax.tree.map(take, tables.extra),
        )  # fmt: skip
        processor = partial(_call, config.processor, context)
    return adjust(logits, arrays, adjustments, tables, lengths, processor)


def _call(processor: LogitsProcessor, context: LogitsContext, logits: jax.Array) -> jax.Array:
    return processor(logits, context)


def _logprobs(
    config: StepConfig,
    raw: jax.Array,  # [R, V], the model's logits
    logits: jax.Array,  # [R, V], after penalties and masks
    arrays: SamplingArrays,
    tokens: jax.Array,  # [R]
    wanted: jax.Array,  # scalar bool
) -> TokenLogprobs:
    def reported() -> TokenLogprobs:
        chosen = processed_logits(logits, arrays) if config.processed else raw
        return token_logprobs(chosen, tokens, config.max_logprobs)

    shapes = jax.eval_shape(reported)
    zeros = partial(jax.tree.map, lambda each: jnp.zeros(each.shape, each.dtype), shapes)
    return lax.cond(wanted, reported, zeros)


def score(
    config: StepConfig,
    count: int | None,
    params: Params,
    hidden: jax.Array,  # [Sp, E]
    targets: jax.Array,  # [Sp]
) -> TokenLogprobs:  # of Sp rows
    """Log probability of `targets[i]` as the token after token i, in slices of rows.

    count: how many of the best tokens are reported beside it; None: not even its rank is. No
    `[Sp, V]` array exists: a slice of logits is reduced before the next is made.
    """

    def one_slice(rows: tuple[jax.Array, jax.Array]) -> TokenLogprobs:
        logits = logits_of(config, params, rows[0])
        if count is not None:
            return token_logprobs(logits, rows[1], count)
        chosen = jnp.take_along_axis(logits, rows[1][:, None], axis=-1)[:, 0]
        none = jnp.zeros((rows[1].shape[0], 0), jnp.int32)
        logprob = chosen - jax.nn.logsumexp(logits, axis=-1)
        return TokenLogprobs(logprob, jnp.zeros_like(rows[1]), none, none.astype(jnp.float32))

    size = min(SCORE_ROWS, hidden.shape[0])
    padding = -hidden.shape[0] % size
    hidden = jnp.pad(hidden, ((0, padding), (0, 0))).reshape(-1, size, hidden.shape[-1])
    scores = lax.map(one_slice, (hidden, jnp.pad(targets, (0, padding)).reshape(-1, size)))
    rows, kept = hidden.shape[0] * size, targets.shape[0]
    return jax.tree.map(lambda each: each.reshape(rows, *each.shape[2:])[:kept], scores)


def rank(
    config: StepConfig,
    count: int,
    params: Params,
    hidden: jax.Array,  # [R, E]
) -> tuple[jax.Array, jax.Array]:  # [R, count] ids and float32 log probabilities
    """The `count` most likely next tokens of each row, best first, lower ids first on ties."""
    logits = logits_of(config, params, hidden)
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
