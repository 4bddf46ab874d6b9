"""Norms and activations, computed in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def rms_norm(
    x: jax.Array,  # [S, E] float32
    weight: jax.Array,  # [E]
    eps: float,
) -> jax.Array:  # [S, E] in the weight's dtype
    """Root mean square norm (arXiv 1910.07467), computed in float32."""
    x = x.astype(jnp.float32)
    scaled = x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
    return (scaled * weight.astype(jnp.float32)[None]).astype(weight.dtype)


def swiglu(
    gate_up: jax.Array,  # [S, 2, F] float32
) -> jax.Array:  # [S, F] float32
    """silu(gate) * up (arXiv 2002.05202)."""
    return jax.nn.silu(gate_up[:, 0]) * gate_up[:, 1]
