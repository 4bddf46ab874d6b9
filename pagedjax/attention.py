"""The seam between models and kernels: writes keys and values, then attends, over the mesh.

Which implementation runs is decided here, when the step is traced.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pagedjax.kv_cache import POOL_SPEC, KVCache
from pallas_kernels import xla
from pallas_kernels.tiles import Device, device_of

HALVES = ("bfloat16", "float16")
MOSAIC_WIDTHS = (64, 128, 256)


class Kernels(NamedTuple):
    """The attention ops of one implementation; all write through `xla`."""

    paged_decode: Callable[..., jax.Array]
    paged_prefill: Callable[..., jax.Array]


def _xla(_: Device) -> Kernels:
    return Kernels(xla.paged_decode, xla.paged_prefill)


def _pallas(device: Device, interpret: bool = False) -> Kernels:
    # Imported where they are asked for: Pallas' GPU backends are of no use on a CPU, and slow to
    # import.
    from pallas_kernels import triton_decode, triton_prefill

    options: dict[str, Any] = {"device": device, "interpret": interpret}
    return Kernels(
        partial(triton_decode.paged_decode, **options),
        partial(triton_prefill.paged_prefill, **options),
    )


def _pallas_mosaic(device: Device) -> Kernels:
    from pallas_kernels import mosaic_decode

    return Kernels(mosaic_decode.paged_decode, _pallas(device).paged_prefill)


IMPLEMENTATIONS: dict[str, Callable[[Device], Kernels]] = {
    "xla": _xla,
    "pallas": _pallas,
    "pallas_interpret": partial(_pallas, interpret=True),
    "pallas_mosaic": _pallas_mosaic,
}


@struct.dataclass
class AttentionInputs:
    """Where this step's tokens go and what they may read; the same for every layer.

    S = Bd + Sp tokens: decode rows first, then the ragged section, as in `batch.StepBatch`.
    """

    decode_tables: jax.Array  # [Bd, P]
    decode_lens: jax.Array  # [Bd]
    tables: jax.Array  # [Bp, P]
    context_lens: jax.Array  # [Bp]
    query_starts: jax.Array  # [Bp + 1]
    write_blocks: jax.Array  # [S]; N for tokens of padding
    write_offsets: jax.Array  # [S]


def resolve(
    attention: str, device: jax.Device, block_size: int, kv_dtype: str, head_dim: int
) -> str:
    """The implementation that "auto" or an explicit name stands for on this device.

    Raises ValueError for a named one that cannot run, with the reason and what to use instead.
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
    """Why the implementation cannot run there, and the remedy; None if it can."""
    if name == "xla":
        return None
    capability = _compute_capability(device)
    found = f"this device is {device.device_kind!r} ({device.platform})"
    if capability:
        found += " of compute capability {}.{}".format(*capability)
    if name == "pallas" and capability < (8, 0):
        return f"needs an NVIDIA GPU of compute capability 8.0 or more; {found}; use 'xla'"
    if name == "pallas_mosaic" and capability[:1] != (9,):
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


def _compute_capability(device: jax.Device) -> tuple[int, ...]:
    """Of an NVIDIA GPU, such as (9, 0); empty for all other devices."""
    if device.platform not in ("gpu", "cuda"):
        return ()
    found = re.fullmatch(r"(\d+)\.(\d+)", str(getattr(device, "compute_capability", "")))
    return tuple(map(int, found.groups())) if found else ()


def write_and_attend(
    q: jax.Array,  # [S, K, G, D]
    k: jax.Array,  # [S, K, D]
    v: jax.Array,  # [S, K, D]
    cache: KVCache,
    layer: jax.Array,  # scalar
    inputs: AttentionInputs,
    *,
    implementation: str,
    mesh: Mesh,
) -> tuple[jax.Array, KVCache]:  # [S, K, G, D]
    """Write the keys and values of the step's tokens, then let each attend to its context.

    Runs in `shard_map` over `tp`: each device has its kv heads' pages, and needs no other's.
    """
    heads, device = P(None, "tp"), device_of(mesh.devices.flat[0])
    run = jax.shard_map(
        partial(_on_one_device, kernels=IMPLEMENTATIONS[implementation](device)),
        mesh=mesh,
        in_specs=(heads, heads, heads, POOL_SPEC, P(), P()),
        out_specs=(heads, POOL_SPEC),
        check_vma=False,
    )
    return run(q, k, v, cache, layer, inputs)


def _on_one_device(
    q: jax.Array,  # [S, K, G, D], K being this device's share from here on
    k: jax.Array,
    v: jax.Array,
    cache: KVCache,
    layer: jax.Array,
    inputs: AttentionInputs,
    *,
    kernels: Kernels,
) -> tuple[jax.Array, KVCache]:
    cache = _write(k, v, cache, layer, inputs)
    pools = (cache.k, cache.v, layer)
    options = {
        "scale": q.shape[-1] ** -0.5, "k_scales": cache.k_scales, "v_scales": cache.v_scales,
    }  # fmt: skip
    flat = q.reshape(q.shape[0], -1, q.shape[-1])  # [S, H, D]
    decodes = inputs.decode_lens.shape[0]
    parts = []
    if decodes:
        parts.append(
            kernels.paged_decode(
                flat[:decodes], *pools, inputs.decode_tables, inputs.decode_lens, **options
            )
        )
    if flat.shape[0] > decodes:
        parts.append(
            kernels.paged_prefill(
                flat[decodes:], *pools, inputs.tables, inputs.context_lens, inputs.query_starts,
                **options,
            )
        )  # fmt: skip
    return jnp.concatenate(parts).reshape(q.shape), cache


def _write(
    k: jax.Array,  # [S, K, D]
    v: jax.Array,  # [S, K, D]
    cache: KVCache,
    layer: jax.Array,
    inputs: AttentionInputs,
) -> KVCache:
    at = (layer, inputs.write_blocks, inputs.write_offsets)
    if cache.k_scales is None or cache.v_scales is None:
        return KVCache(k=xla.write_kv(cache.k, *at, k), v=xla.write_kv(cache.v, *at, v))
    k_pool, k_scales = xla.write_quantised(cache.k, cache.k_scales, *at, k)
    v_pool, v_scales = xla.write_quantised(cache.v, cache.v_scales, *at, v)
    return KVCache(k_pool, v_pool, k_scales, v_scales)
