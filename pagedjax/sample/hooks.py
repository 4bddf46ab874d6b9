"""User functions that run inside the compiled step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class LogitsContext:
    """The inputs of a logits processor besides the logits; one entry per row of logits.

    tokens: prompt and output tokens of the row; only the first `lengths` entries are valid.
    positions: t = lengths - num_prompt, the output position of the token to be drawn.
    extra: `SamplingParams.extra` of each row's request, or the engine's default.
    """

    tokens: jax.Array  # [R, X] int32
    lengths: jax.Array  # [R]
    num_prompt: jax.Array  # [R]
    positions: jax.Array  # [R]
    extra: Mapping[str, jax.Array]  # each [R, ...]


# (logits [R, V] float32, context) -> logits [R, V]
LogitsProcessor = Callable[[jax.Array, LogitsContext], jax.Array]


def check_processor(
    processor: LogitsProcessor, vocab_size: int, max_len: int, extra: Mapping[str, Any]
) -> None:
    """Trace `processor` once on abstract shapes.

    Raises ValueError unless it returns logits of the shape that it was given. Exceptions of the
    processor itself propagate.
    """
    rows = 3
    tokens: Any = jax.ShapeDtypeStruct((rows, max_len), jnp.int32)
    numbers: Any = jax.ShapeDtypeStruct((rows,), jnp.int32)
    arrays: Any = {
        name: jax.ShapeDtypeStruct((rows, *each.shape), each.dtype) for name, each in extra.items()
    }
    context = LogitsContext(tokens, numbers, numbers, numbers, arrays)
    logits: Any = jax.ShapeDtypeStruct((rows, vocab_size), jnp.float32)
    found = jax.eval_shape(processor, logits, context)
    if getattr(found, "shape", None) != logits.shape:
        raise ValueError(
            f"logits_processor returned {found} for logits of shape {logits.shape}; it must "
            "return logits of that shape"
        )
