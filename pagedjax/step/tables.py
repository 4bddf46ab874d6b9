"""The programs that write the per-slot tables of penalties and user arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pagedjax.sample.penalties import Tables


def make_tables(
    num_slots: int, max_len: int, vocab_size: int, extra: dict[str, jax.Array]
) -> Tables:
    """Make tables of empty slots; `extra` holds the default of each user array."""
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
    """Initialise a slot with its tokens so far and the user's arrays, without edits."""
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
    """Set the edits of the slot's next draws."""
    return tables.replace(edits=tables.edits.at[slot].set(edits))  # type: ignore[attr-defined]
