"""Residual addition and RMS norm in one kernel, in Pallas' Triton backend.

Program i processes token i. The product that is added comes as partial sums
(`tiles.product_splits`), which are summed here. XLA needs two launches for small batches, since
the sum has two consumers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from pallas_kernels.pages import padded, scratch_spec, sum_of_parts

MAX_WIDTH = 32768  # elements that one program holds at once
PER_WARP = 512


def add_norm(
    x: jax.Array,  # [S, E] float32
    added: jax.Array,  # [A, S, E] float32
    weight: jax.Array,  # [E]
    eps: float,
    *,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:  # [S, E] float32, [S, E] in the weight's dtype
    """See `reference.add_norm`. Raises ValueError if E exceeds MAX_WIDTH."""
    tokens, width = x.shape
    if width > MAX_WIDTH:
        raise ValueError(f"hidden_size={width}; supported by this kernel: up to {MAX_WIDTH}")
    run = pl.pallas_call(
        partial(_one_token, eps=eps),
        grid=(tokens,),
        in_specs=[scratch_spec()] * 3,
        out_specs=[scratch_spec()] * 2,
        out_shape=[
            jax.ShapeDtypeStruct(x.shape, jnp.float32),
            jax.ShapeDtypeStruct(x.shape, weight.dtype),
        ],
        compiler_params=plt.CompilerParams(
            num_warps=min(16, max(4, padded(width) // PER_WARP)), num_stages=1
        ),
        interpret=interpret,
        name="add_norm",
    )
    total, normed = run(x, added, weight)
    return total, normed


def _one_token(
    x_ref: Any, added_ref: Any, weight_ref: Any, total_ref: Any, normed_ref: Any, *, eps: float
) -> None:
    token, width = pl.program_id(0), x_ref.shape[1]
    wide = lax.iota(jnp.int32, padded(width))
    at, real = (token, wide), wide < width
    weight = plt.load(weight_ref.at[wide], mask=real, other=jnp.zeros((), weight_ref.dtype))
    x = plt.load(x_ref.at[at], mask=real, other=0.0)
    total = x + sum_of_parts(added_ref, at, real)
    plt.store(total_ref.at[at], total, mask=real)
    scaled = total * lax.rsqrt((total * total).sum() / width + eps)
    normed = scaled * weight.astype(jnp.float32)
    plt.store(normed_ref.at[at], normed.astype(normed_ref.dtype), mask=real)
