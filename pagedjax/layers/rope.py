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
    `yarn` (arXiv 2309.00071): the same with beta_fast and beta_slow turns, and a blend that is
    linear in the dimension.
    """
    plain = rope.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    kept: np.ndarray = np.ones_like(plain)  # share of each frequency that is not divided
    if rope.rope_type == "linear":
        kept = np.zeros_like(plain)
    elif rope.rope_type == "llama3":
        turns = rope.original_max_position_embeddings * plain / (2 * math.pi)
        kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    elif rope.rope_type == "yarn":
        fast, slow = _yarn_range(rope, head_dim)
        kept = (slow - np.arange(head_dim // 2)) / (slow - fast)
    kept = np.clip(kept, 0, 1)
    return (plain * (kept + (1 - kept) / rope.factor)).astype(np.float32)


def _yarn_range(rope: RopeScaling, head_dim: int) -> tuple[float, float]:
    """Indices of the pairs that make `beta_fast` and `beta_slow` turns per original context."""

    def index(turns: float) -> float:
        wavelength = rope.original_max_position_embeddings / turns
        return head_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(rope.theta))

    fast, slow = index(rope.beta_fast), index(rope.beta_slow)
    if rope.truncate:
        fast, slow = math.floor(fast), math.ceil(slow)
    fast, slow = max(fast, 0), min(slow, head_dim - 1)
    return fast, slow if slow != fast else fast + 0.001  # as in the released code


def rope_tables(
    positions: jax.Array,  # [S]
    frequencies: np.ndarray,  # [D / 2]
    attention_factor: float = 1.0,
) -> tuple[jax.Array, jax.Array]:  # cos, sin [S, D / 2] float32
    """Angles in float32 for every model dtype: bfloat16 cannot represent position 257."""
    angles = positions.astype(jnp.float32)[:, None] * jnp.asarray(frequencies, jnp.float32)[None]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    if attention_factor == 1:
        return cos, sin
    return cos * attention_factor, sin * attention_factor


def apply_rope(
    x: jax.Array,  # [S, heads, D] float32
    cos: jax.Array,  # [S, D / 2]
    sin: jax.Array,  # [S, D / 2]
) -> jax.Array:  # [S, heads, D] float32
    """Rotate the pairs (i, i + D/2) of every head (arXiv 2104.09864; pairing as in GPT-NeoX)."""
    low, high = jnp.split(x, 2, axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
