"""The operations of a layer, other than its activation, that a model calls; over the mesh.

For small batches on a GPU the kernel launches between the matrix products take significant time,
so kernels fuse what XLA would launch separately: `product` returns partial sums, and the kernel
that reads them adds them up and also computes the norm, or applies RoPE and writes the pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pagedjax.layers.attention import rotate_write_attend
from pagedjax.layers.elementwise import rms_norm
from pagedjax.layers.kv_cache import KVCache
from pagedjax.layers.linear import linear
from pallas_kernels.tiles import device_of, product_splits


class LayerOps(NamedTuple):
    """The layer operations of one implementation.

    linear: `layers.linear`, `(x [S,*in], weight [*out,*in], bias or None) -> [S,*out]`.
    product: `(x [S,*in], weight [*out,*in], bias [*out] or None) -> [A,S,*out]`, float32 partial
        sums; their sum over A is the result of `layers.linear`.
    add_norm: `(x [S,E], parts [A,S,E] or None, weight [E], eps)` -> x plus the sum of `parts`, in
        float32, and the RMS norm of that in the weight's dtype.
    attend: `(qkv [A,S,K,G+2,D], rotation, cache, layer, inputs, dtype, window=None)
        -> (out [S,K,G,D], cache)`, `attention.rotate_write_attend`.
    """

    linear: Callable[..., jax.Array]
    product: Callable[..., jax.Array]
    add_norm: Callable[..., tuple[jax.Array, jax.Array]]
    attend: Callable[..., tuple[jax.Array, KVCache]]


def layer_ops(implementation: str, mesh: Mesh, batch_invariant: bool = False) -> LayerOps:
    """The operations of an implementation that `attention.resolve` returned.

    batch_invariant: a row's result does not depend on the number of rows, provided that it is at
    least the minimum that `step.invariance` finds.
    """
    attend = partial(rotate_write_attend, implementation=implementation, mesh=mesh)
    if implementation == "xla":
        product = partial(linear, same_for_all_rows=batch_invariant)
        return LayerOps(product, partial(_product, linear=product), _add_norm, attend)
    assert not batch_invariant, "refused by EngineConfig"
    from pallas_kernels import triton_add_norm  # slow to import, not needed on CPU

    kernel = partial(triton_add_norm.add_norm, interpret=implementation == "pallas_interpret")
    product = partial(_product, linear=linear)
    if mesh.size == 1:  # several devices would exchange all parts instead of their sum
        product = partial(_split_product, cores=device_of(mesh.devices.flat[0]).cores)
    return LayerOps(linear, product, partial(_fused_add_norm, kernel=kernel, mesh=mesh), attend)


def _product(
    x: jax.Array,  # [S, *in]
    weight: jax.Array,  # [*out, *in]
    bias: jax.Array | None = None,  # [*out]
    *,
    linear: Callable[..., jax.Array],
) -> jax.Array:  # [1, S, *out]
    return linear(x, weight, bias)[None]


def _split_product(
    x: jax.Array,  # [S, *in]
    weight: jax.Array,  # [*out, *in]
    bias: jax.Array | None = None,  # [*out]
    *,
    cores: int,
) -> jax.Array:  # [A, S, *out]
    """Split the product along its inputs where XLA would also split it and launch a sum kernel."""
    rows, inputs = x.shape[0], math.prod(x.shape[1:])
    outputs = weight.size // inputs
    splits = product_splits(rows, outputs, inputs, cores)
    if splits == 1 or bias is not None:
        return linear(x, weight, bias)[None]
    parts = lax.dot_general(
        x.astype(weight.dtype).reshape(rows, splits, -1),
        weight.reshape(outputs, splits, -1),
        (((2,), (2,)), ((1,), (1,))),
        preferred_element_type=jnp.float32,
        # As in `layers.linear`: no TF32.
        precision=lax.Precision.HIGHEST if weight.dtype == jnp.float32 else None,
    )
    return parts.reshape(splits, rows, *weight.shape[: weight.ndim - x.ndim + 1])


def _add_norm(
    x: jax.Array,  # [S, E]
    parts: jax.Array | None,  # [A, S, E]
    weight: jax.Array,  # [E]
    eps: float,
) -> tuple[jax.Array, jax.Array]:  # [S, E] float32, [S, E] in the weight's dtype
    """`reference.add_norm` in plain XLA."""
    total = x if parts is None else x + parts.sum(axis=0)
    return total, rms_norm(total, weight, eps)


def _fused_add_norm(
    x: jax.Array,  # [S, E]
    parts: jax.Array | None,  # [A, S, E]
    weight: jax.Array,  # [E]
    eps: float,
    *,
    kernel: Callable[..., tuple[jax.Array, jax.Array]],
    mesh: Mesh,
) -> tuple[jax.Array, jax.Array]:
    """Run in `shard_map`, since XLA cannot partition a kernel; every device holds whole rows."""
    if parts is None:
        return _add_norm(x, None, weight, eps)
    run = jax.shard_map(
        partial(kernel, eps=eps), mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
    )
    return run(x, parts, weight)
