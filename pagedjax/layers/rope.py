"""Rotary position embeddings (RoFormer, arXiv 2104.09864)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from pagedjax.architecture.rope_scaling import RopeScaling


def rope_frequencies(rope: RopeScaling, head_dim: int) -> np.ndarray:  # [D / 2] float32
    """Radians per position of each pair of dimensions, after the scaling of `rope`.

    `llama3` (arXiv 2407.21783 and its released weights): frequencies of wavelengths shorter than
    original / high_freq_factor are kept, those of wavelengths longer than
    original / low_freq_factor are divided by `factor`, and those in between are a blend of the two
    that is linear in original / wavelength.
    """
    plain = rope.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.rope_type == "default":
        return plain.astype(np.float32)
    turns = rope.original_max_position_embeddings * plain / (2 * math.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = np.clip(blend, 0, 1)
    return (plain * (blend + (1 - blend) / rope.factor)).astype(np.float32)


def rope_tables(
    positions: jax.Array,  # [S]
    frequencies: np.ndarray,  # [D / 2]
) -> tuple[jax.Array, jax.Array]:  # cos, sin [S, D / 2] float32
    """Angles in float32 for every model dtype: bfloat16 cannot represent position 257."""
    angles = positions.astype(jnp.float32)[:, None] * jnp.asarray(frequencies, jnp.float32)[None]
    return jnp.cos(angles), jnp.sin(angles)


def apply_rope(
    x: jax.Array,  # [S, heads, D] float32
    cos: jax.Array,  # [S, D / 2]
    sin: jax.Array,  # [S, D / 2]
) -> jax.Array:  # [S, heads, D] float32
    """Rotate the pairs (i, i + D/2) of every head (arXiv 2104.09864; pairing as in GPT-NeoX)."""
    low, high = jnp.split(x, 2, axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
