"""The seam between models and kernels: writes keys and values, then attends, over the mesh.

Which implementation runs is decided here, when the step is traced.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pagedjax.kv_cache import POOL_SPEC, KVCache
from pallas_kernels import xla

IMPLEMENTATIONS = {"xla": xla}


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


def resolve(attention: str) -> str:
    """The implementation that "auto" or an explicit name stands for on this backend."""
    return "xla" if attention == "auto" else attention


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
    heads = P(None, "tp")
    run = jax.shard_map(
        partial(_on_one_device, implementation=implementation),
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
    implementation: str,
) -> tuple[jax.Array, KVCache]:
    kernels = IMPLEMENTATIONS[implementation]
    at = (layer, inputs.write_blocks, inputs.write_offsets)
    cache = KVCache(k=kernels.write_kv(cache.k, *at, k), v=kernels.write_kv(cache.v, *at, v))
    pools = (cache.k, cache.v, layer)
    scale = q.shape[-1] ** -0.5
    flat = q.reshape(q.shape[0], -1, q.shape[-1])  # [S, H, D]
    decodes = inputs.decode_lens.shape[0]
    parts = []
    if decodes:
        parts.append(
            kernels.paged_decode(
                flat[:decodes], *pools, inputs.decode_tables, inputs.decode_lens, scale=scale
            )
        )
    if flat.shape[0] > decodes:
        parts.append(
            kernels.paged_prefill(
                flat[decodes:], *pools, inputs.tables, inputs.context_lens, inputs.query_starts,
                scale=scale,
            )
        )  # fmt: skip
    return jnp.concatenate(parts).reshape(q.shape), cache
