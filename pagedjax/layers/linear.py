"""Matrix products with weights stored `[out, in]`, accumulated in float32."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from pagedjax.devices.host_cpu import instruction_sets


def linear(
    x: jax.Array,  # [S, *in]
    weight: jax.Array,  # [*out, *in]
    bias: jax.Array | None = None,  # [*out]
    *,
    same_for_all_rows: bool = False,
) -> jax.Array:  # [S, *out] float32
    """Product with a weight stored `[out, in]`, accumulated and returned in float32.

    same_for_all_rows: on CPU, do not switch for few rows to another form of the product, which is
    faster but rounds differently.

    The weight keeps its axes, because one that is not outermost, such as F of `gate_up [2, F, E]`,
    may be sharded over devices. On CPU it is reshaped to a matrix, since XLA would otherwise
    transpose and copy it at every step.
    """
    flat = partial(_flat_product, same_for_all_rows=same_for_all_rows)
    y = lax.platform_dependent(x.astype(weight.dtype), weight, cpu=flat, default=_product)
    return y if bias is None else y + bias.astype(jnp.float32)[None]


def _product(x: jax.Array, weight: jax.Array) -> jax.Array:
    inputs = x.ndim - 1
    ours, theirs = range(1, x.ndim), range(weight.ndim - inputs, weight.ndim)
    contracted = ((tuple(ours), tuple(theirs)), ((), ()))
    return lax.dot_general(
        x,
        weight,
        contracted,
        preferred_element_type=jnp.float32,
        # By default a GPU rounds float32 operands to TF32, with an error of 3e-4.
        precision=lax.Precision.HIGHEST if weight.dtype == jnp.float32 else None,
    )


def _flat_product(x: jax.Array, weight: jax.Array, same_for_all_rows: bool) -> jax.Array:
    out_shape = weight.shape[: weight.ndim - x.ndim + 1]
    flat = x.reshape(x.shape[0], -1)
    matrix = weight.reshape(math.prod(out_shape), flat.shape[1])
    if not same_for_all_rows and _weights_go_left(x.shape[0], weight.dtype, instruction_sets()):
        # Without the barrier XLA would undo the transposition of the product.
        y = lax.optimization_barrier(_product(matrix, flat)).T
    else:
        y = _product(flat, matrix)
    return y.reshape(x.shape[0], *out_shape)


def _weights_go_left(rows: int, dtype: jnp.dtype, instruction_sets: frozenset[str]) -> bool:
    """Whether XLA's product on CPU is faster with the weights as the left operand.

    XLA repacks the right operand, which does not pay off for few rows. Measured time relative to
    weights on the right: float32 0.5 to 0.8 up to 64 rows; bfloat16 0.85 to 1 from 16 to 32 rows
    and above 1 outside; bfloat16 without AVX-512 0.8 to 1 from 8 to 48 rows.
    """
    if dtype == jnp.float32:
        return rows <= 64
    if "avx2" in instruction_sets and "avx512f" not in instruction_sets:
        return 8 <= rows <= 48
    return 16 <= rows <= 32
