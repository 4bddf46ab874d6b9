"""One-byte storage formats for keys and values: int8 and fp8, with a scale per token and kv head.

The pool's dtype identifies the format: int8 holds integers from -127 to 127, uint8 holds the bits
of float8_e4m3fn (arXiv 2209.05433). fp8 is stored as uint8 because XLA on CPU would convert a
whole float8 pool to float32 at every step, and GPUs before compute capability 8.9 lack the type.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Format(NamedTuple):
    """A one-byte format, with `value = decode(byte) * scale`."""

    dtype: str  # of the pool
    largest: float  # the largest magnitude of a vector's D values is scaled to this


# As precise as the operands of 16-bit products, so an attention weight of 1 times a scale is exact.
SCALE_DTYPE = jnp.dtype("bfloat16")
FORMATS = {"int8": Format("int8", 127.0), "fp8": Format("uint8", 448.0)}


def format_of(pool: jax.Array) -> str | None:
    """Return "int8", "fp8", or None for a pool of unscaled floats."""
    names = [name for name, each in FORMATS.items() if pool.dtype == each.dtype]
    return names[0] if names else None


def quantise(
    values: jax.Array,  # [..., D]
    name: str,
) -> tuple[jax.Array, jax.Array]:  # [..., D] stored, [...] bfloat16 scales
    """Scale each vector so that its largest magnitude is the format's largest value, and round.

    The scale is 0 for a vector of zeros and NaN for a vector that contains a NaN.
    """
    largest = FORMATS[name].largest
    values = values.astype(jnp.float32)
    scales = (jnp.abs(values).max(axis=-1) * jnp.float32(1 / largest)).astype(SCALE_DTYPE)
    wide = scales.astype(jnp.float32)
    scaled = values / jnp.where(wide == 0, 1, wide)[..., None]
    scaled = jnp.clip(scaled, -largest, largest)  # for scales that were rounded down
    if name == "int8":
        return jnp.round(scaled).astype(jnp.int8), scales
    bits = jax.lax.bitcast_convert_type(scaled.astype(jnp.float8_e4m3fn), jnp.uint8)
    return bits, scales


def decode(
    stored: jax.Array,  # int8 or uint8
    dtype: jnp.dtype,
) -> jax.Array:
    """Decode stored bytes to numbers, without their scales; exact in any float dtype."""
    if stored.dtype == jnp.int8:
        return stored.astype(dtype)
    return jax.lax.bitcast_convert_type(stored, jnp.float8_e4m3fn).astype(dtype)
