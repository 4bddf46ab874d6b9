"""The sampling programs: hidden states to tokens and their log probabilities."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from pagedjax.sample import sampler
from pagedjax.sample.hooks import LogitsContext, LogitsProcessor
from pagedjax.sample.logprobs import TokenLogprobs, token_logprobs
from pagedjax.sample.penalties import Adjustments, Tables, adjust
from pagedjax.sample.sampler import SamplingArrays, processed_logits
from pagedjax.schedule.request import Variant
from pagedjax.step.forward import logits_of
from pagedjax.step.state import StepConfig
from pagedjax.weights.params import Params


@struct.dataclass
class Drawn:
    """The result of `sample`. `logprobs` and `tables` are None if the variant has none."""

    slot_tokens: jax.Array  # [M]
    tokens: jax.Array  # [R]
    logprobs: TokenLogprobs | None
    tables: Tables | None


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
    """Draw a token per logit row and write it to its slot.

    variant: "greedy" if all rows are greedy; "random"; "logprobs", which also returns log
    probabilities; "full", which also has penalties, biases and user functions.
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


def rank(
    config: StepConfig,
    count: int,
    params: Params,
    hidden: jax.Array,  # [R, E]
) -> tuple[jax.Array, jax.Array]:  # [R, count] ids and float32 log probabilities
    """The `count` most likely next tokens of each row, best first, ties broken by the lower id."""
    logits = logits_of(config, params, hidden)
    best, ids = lax.top_k(logits, count)
    return ids, best - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
