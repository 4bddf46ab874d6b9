"""The scoring program: log probabilities of given tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from pagedjax.sample.logprobs import TokenLogprobs, token_logprobs
from pagedjax.step.forward import logits_of
from pagedjax.step.state import StepConfig
from pagedjax.weights.params import Params

SCORE_ROWS = 64  # rows whose logits exist at the same time while scoring


def score(
    config: StepConfig,
    count: int | None,
    params: Params,
    hidden: jax.Array,  # [Sp, E]
    targets: jax.Array,  # [Sp]
) -> TokenLogprobs:  # of Sp rows
    """Log probability of `targets[i]` as the token after token i, computed in slices of rows.

    count: number of best tokens that are also returned; None: return no best tokens and no ranks.

    No `[Sp, V]` array exists: each slice of logits is reduced before the next one is computed.
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
