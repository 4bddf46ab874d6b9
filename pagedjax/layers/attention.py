"""The interface between models and kernels: apply RoPE, write keys and values, attend.

Runs over the mesh. The implementation is chosen here, when the step is traced.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pagedjax.layers.kv_cache import POOL_SPEC, KVCache
from pagedjax.layers.rope import apply_rope
from pallas_kernels import xla_decode, xla_prefill, xla_write
from pallas_kernels.tiles import Device, compute_capability, device_of

HALVES = ("bfloat16", "float16")
MOSAIC_WIDTHS = (64, 128, 256)


class Kernels(NamedTuple):
    """The operations of one attention implementation; see `pallas_kernels.reference`."""

    rope_write: Callable[..., tuple[jax.Array, tuple[jax.Array, ...]]]
    paged_decode: Callable[..., jax.Array]
    paged_prefill: Callable[..., jax.Array]


def _xla(_: Device) -> Kernels:
    return Kernels(_rope_write, xla_decode.paged_decode, xla_prefill.paged_prefill)


def _pallas(device: Device, interpret: bool = False) -> Kernels:
    # Imported on demand: Pallas' GPU backends are slow to import and not needed on CPU.
    from pallas_kernels import triton_decode, triton_prefill, triton_rope_write

    options: dict[str, Any] = {"device": device, "interpret": interpret}
    return Kernels(
        partial(triton_rope_write.rope_write, interpret=interpret),
        partial(triton_decode.paged_decode, **options),
        partial(triton_prefill.paged_prefill, **options),
    )


def _pallas_mosaic(device: Device) -> Kernels:
    from pallas_kernels import mosaic_decode

    return _pallas(device)._replace(paged_decode=mosaic_decode.paged_decode)


IMPLEMENTATIONS: dict[str, Callable[[Device], Kernels]] = {
    "xla": _xla,
    "pallas": _pallas,
    "pallas_interpret": partial(_pallas, interpret=True),
    "pallas_mosaic": _pallas_mosaic,
}


@struct.dataclass
class AttentionInputs:
    """The positions this step's tokens write and the context they read; the same for every layer.

    S = Bd + Sp tokens: decode rows first, then the ragged section, as in `batch.StepBatch`.
    """

    decode_tables: jax.Array  # [Bd, P]
    decode_lens: jax.Array  # [Bd]
    tables: jax.Array  # [Bp, P]
    context_lens: jax.Array  # [Bp]
    query_starts: jax.Array  # [Bp + 1]
    write_blocks: jax.Array  # [S]; N for padding tokens
    write_offsets: jax.Array  # [S]


def resolve(
    attention: str, device: jax.Device, block_size: int, kv_dtype: str, head_dim: int
) -> str:
    """Return the attention implementation that `attention` selects on this device.

    Raises ValueError if a named implementation cannot run, with the reason and an alternative.
    """
    if attention == "auto":
        obstacle = _obstacle("pallas", device, block_size, kv_dtype, head_dim)
        return "xla" if obstacle else "pallas"
    if obstacle := _obstacle(attention, device, block_size, kv_dtype, head_dim):
        raise ValueError(f"attention={attention!r} {obstacle}")
    return attention


def _obstacle(
    name: str, device: jax.Device, block_size: int, kv_dtype: str, head_dim: int
) -> str | None:
    """Why the implementation cannot run on `device`, and what to use instead; None if it can."""
    if name == "xla":
        return None
    capability = compute_capability(device) or (0, 0)
    found = f"this device is {device.device_kind!r} ({device.platform})"
    if capability > (0, 0):
        found += " of compute capability {}.{}".format(*capability)
    if name == "pallas" and capability < (8, 0):
        return f"needs an NVIDIA GPU of compute capability 8.0 or more; {found}; use 'xla'"
    if name == "pallas_mosaic" and capability[0] != 9:
        return f"needs a Hopper GPU, compute capability 9.x; {found}; use 'auto'"
    if name == "pallas_mosaic" and kv_dtype not in HALVES:
        return (
            f"needs kv_cache_dtype='bfloat16' or 'float16', and the pool's is {kv_dtype!r}; "
            "use 'auto'"
        )
    if name == "pallas_mosaic" and head_dim not in MOSAIC_WIDTHS:
        return f"needs a head_dim of 64, 128 or 256, and not {head_dim}; use 'auto'"
    if head_dim % 8 or head_dim > 256:
        return f"needs a head_dim of 8, 16, ... 256, and not {head_dim}; use 'xla'"
    if not 8 <= block_size <= 256 or block_size & (block_size - 1):
        return (
            f"needs a block_size that is a power of two from 8 to 256, and not {block_size}; "
            "change it or use 'xla'"
        )
    return None


def rotate_write_attend(
    qkv: jax.Array,  # [A, S, K, G + 2, D] float32: G queries, a key and a value of each kv head
    rotation: tuple[jax.Array, jax.Array],  # cos, sin [S, D / 2]
    cache: KVCache,
    layer: jax.Array,  # scalar
    inputs: AttentionInputs,
    dtype: Any,  # of queries, keys, values and output
    *,
    implementation: str,
    mesh: Mesh,
    window: int | None = None,
) -> tuple[jax.Array, KVCache]:  # [S, K, G, D]
    """Write the keys and values of the step's tokens, then attend to each token's context.

    qkv: partial sums of a product; their sum over A is used (`ops.LayerOps`).
    window: a query attends to its own key and the window - 1 before it; None: to all.

    Runs in `shard_map` over `tp`: each device holds the blocks of its own kv heads and needs no
    communication.
    """
    kernels = IMPLEMENTATIONS[implementation](device_of(mesh.devices.flat[0]))
    run = jax.shard_map(
        partial(_on_one_device, dtype=dtype, kernels=kernels, window=window),
        mesh=mesh,
        in_specs=(P(None, None, "tp"), P(), POOL_SPEC, P(), P()),
        out_specs=(P(None, "tp"), POOL_SPEC),
        check_vma=False,
    )
    return run(qkv, rotation, cache, layer, inputs)


def _on_one_device(
    qkv: jax.Array,  # [A, S, K, G + 2, D]; from here on K is this device's share
    rotation: tuple[jax.Array, jax.Array],
    cache: KVCache,
    layer: jax.Array,
    inputs: AttentionInputs,
    *,
    dtype: Any,
    kernels: Kernels,
    window: int | None,
) -> tuple[jax.Array, KVCache]:
    pools = [cache.k, cache.v]
    if cache.k_scales is not None and cache.v_scales is not None:
        pools += [cache.k_scales, cache.v_scales]
    at = (layer, inputs.write_blocks, inputs.write_offsets)
    q, written = kernels.rope_write(qkv, *rotation, tuple(pools), *at, dtype=dtype)
    cache = KVCache(*written)
    options = {
        "scale": q.shape[-1] ** -0.5, "k_scales": cache.k_scales, "v_scales": cache.v_scales,
        "window": window,
    }  # fmt: skip
    flat = q.reshape(q.shape[0], -1, q.shape[-1])  # [S, H, D]
    decodes = inputs.decode_lens.shape[0]
    read, parts = (cache.k, cache.v, layer), []
    if decodes:
        parts.append(
            kernels.paged_decode(
                flat[:decodes], *read, inputs.decode_tables, inputs.decode_lens, **options
            )
        )
    if flat.shape[0] > decodes:
        parts.append(
            kernels.paged_prefill(
                flat[decodes:], *read, inputs.tables, inputs.context_lens, inputs.query_starts,
                **options,
            )
        )  # fmt: skip
    return jnp.concatenate(parts).reshape(q.shape), cache


def _rope_write(
    qkv: jax.Array,  # [A, S, K, G + 2, D]
    cos: jax.Array,  # [S, D / 2]
    sin: jax.Array,  # [S, D / 2]
    pools: tuple[jax.Array, ...],
    layer: jax.Array,
    blocks: jax.Array,  # [S]
    offsets: jax.Array,  # [S]
    *,
    dtype: Any,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """`reference.rope_write` in plain XLA."""
    qkv = qkv.sum(axis=0)
    heads = qkv[:, :, :-1]  # values are not rotated
    flat = heads.reshape(heads.shape[0], -1, heads.shape[-1])
    rotated = apply_rope(flat, cos, sin).reshape(heads.shape).astype(dtype)
    k, v, at = rotated[:, :, -1], qkv[:, :, -1].astype(dtype), (layer, blocks, offsets)
    if len(pools) == 2:
        written = [
            xla_write.write_kv(pool, *at, each) for pool, each in zip(pools, (k, v), strict=True)
        ]
        return rotated[:, :, :-1], tuple(written)
    k_pool, k_scales = xla_write.write_quantised(pools[0], pools[2], *at, k)
    v_pool, v_scales = xla_write.write_quantised(pools[1], pools[3], *at, v)
    return rotated[:, :, :-1], (k_pool, v_pool, k_scales, v_scales)
