"""Random queries, pools and tables of a case on the device, and the exact result of attention.

Pools have several layers, and measured calls use them in turn, as an engine's steps do. A single
small layer would be read from the device's cache instead of its memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bench.attention.roofline import QUERY, work
from bench.attention.shapes import Case
from pallas_kernels import reference
from pallas_kernels.formats import FORMATS, decode, quantise

POOL_BYTES = 256 << 20  # more than the caches of the measured devices
MAX_LAYERS = 8
# Most query-key products for which the loops of the reference are fast enough.
LOOP_PAIRS = 200_000
QUERIES_AT_ONCE = 128


@dataclass(frozen=True)
class Problem:
    """Arguments of the ops. A pool has exactly the pages that the rows need."""

    case: Case
    dtype: str
    q: jax.Array  # [S, H, D] bfloat16
    k_pool: jax.Array  # [L, N, K, T, D]
    v_pool: jax.Array  # [L, N, K, T, D]
    tables: jax.Array  # [B, P]
    context_lens: jax.Array  # [B]
    query_starts: jax.Array  # [B + 1]
    k_scales: jax.Array | None  # [L, N, K, T]
    v_scales: jax.Array | None  # [L, N, K, T]

    @property
    def layers(self) -> int:
        """Number of layers, L."""
        return self.k_pool.shape[0]

    @property
    def size(self) -> int:
        """Tokens per page, T."""
        return self.k_pool.shape[3]

    @property
    def scale(self) -> float:
        """Scale of the scores."""
        return self.case.heads.width**-0.5

    def numbers(self, layer: int, rows: np.ndarray) -> tuple[jax.Array, jax.Array]:
        """Return the keys and values of some rows, [rows, P * T, K, D] bfloat16."""
        tables = self.tables[rows]
        return (
            _dense(self.k_pool, self.k_scales, layer, tables),
            _dense(self.v_pool, self.v_scales, layer, tables),
        )


def make_problem(
    case: Case, dtype: str, size: int, seed: int = 0, layers: int | None = None
) -> Problem:
    """Create rows over shuffled pages of `size` tokens. layers: None for `num_layers`."""
    pages = [-(-context // size) for context in case.contexts]
    blocks, heads = sum(pages), case.heads
    layers = num_layers(case, dtype) if layers is None else layers
    rng = np.random.default_rng(seed)
    tables = np.zeros((case.rows, max(pages)), np.int32)
    order = rng.permutation(blocks).astype(np.int32)
    for row, first in enumerate(np.cumsum([0, *pages[:-1]])):
        tables[row, : pages[row]] = order[first : first + pages[row]]
    shape = (layers, blocks, heads.num_kv_heads, size, heads.width)
    # unsafe_rbg, because threefry takes seconds for a large pool on a CPU.
    keys = jax.random.split(jax.random.key(seed, impl="unsafe_rbg"), 3)
    (k_pool, k_scales), (v_pool, v_scales) = (_pool(key, shape, dtype) for key in keys[:2])
    q = jax.random.normal(keys[2], (sum(case.queries), heads.num_heads, heads.width), QUERY)
    starts = np.concatenate([[0], np.cumsum(case.queries)]).astype(np.int32)
    return Problem(
        case, dtype, q, k_pool, v_pool, jnp.asarray(tables),
        jnp.asarray(np.array(case.contexts, np.int32)), jnp.asarray(starts), k_scales, v_scales,
    )  # fmt: skip


def num_layers(case: Case, dtype: str) -> int:
    """Return the number of layers: enough to exceed the device's caches, at most MAX_LAYERS.

    At least 2: with one layer, XLA would know which layer a chain of calls reads, and gather its
    pages once, before the loop.
    """
    layer_bytes = work(case, dtype).kv_bytes
    layers = min(MAX_LAYERS, max(2, -(-POOL_BYTES // layer_bytes)))
    # The Triton kernels reject one-byte pools of these sizes, but support larger ones.
    while dtype in FORMATS and 2**31 < layers * layer_bytes // 2 <= 2**32:
        layers += 1
    return layers


def pool_bytes(case: Case, dtype: str) -> int:
    """Return the bytes of the pools that `make_problem` creates, over all layers."""
    needed = work(case, dtype)
    return num_layers(case, dtype) * (needed.kv_bytes + needed.scale_bytes)


@partial(jax.jit, static_argnums=(1, 2))
def _pool(key: jax.Array, shape: tuple[int, ...], dtype: str) -> tuple[jax.Array, jax.Array | None]:
    def layer(key: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        spread = math.sqrt(3)  # for a variance of 1
        values = jax.random.uniform(key, shape[1:], QUERY, -spread, spread)
        return quantise(values, dtype) if dtype in FORMATS else (values, None)

    return lax.map(layer, jax.random.split(key, shape[0]))


@partial(jax.jit, static_argnums=2)
def _dense(
    pool: jax.Array, scales: jax.Array | None, layer: int, tables: jax.Array
) -> jax.Array:  # [rows, P * T, K, D]
    rows, pages = tables.shape
    found = pool[layer, tables]  # [rows, P, K, T, D]
    if scales is not None:
        wide = scales[layer, tables][..., None].astype(jnp.float32)
        found = (decode(found, jnp.dtype("float32")) * wide).astype(QUERY)
    _, _, kv_heads, size, width = found.shape
    return found.transpose(0, 1, 3, 2, 4).reshape(rows, pages * size, kv_heads, width)


def exact(problem: Problem, layer: int) -> np.ndarray:  # [S, H, D] float32
    """Return the exact result: by the reference if it is fast enough, else in XLA by rows."""
    pairs = sum(c * n for c, n in zip(problem.case.contexts, problem.case.queries, strict=True))
    if pairs * problem.case.heads.num_heads <= LOOP_PAIRS:
        return _looped(problem, layer)
    rows = []
    starts = np.asarray(problem.query_starts)
    for row, context in enumerate(problem.case.contexts):
        first, last = int(starts[row]), int(starts[row + 1])
        found = _exact_row(
            problem.q[first:last], jnp.int32(context - (last - first)), problem.tables[row],
            jnp.int32(layer), problem.k_pool, problem.v_pool, problem.k_scales, problem.v_scales,
            problem.scale,
        )  # fmt: skip
        rows.append(np.asarray(found))
    return np.concatenate(rows)


def _looped(problem: Problem, layer: int) -> np.ndarray:
    arrays = (
        problem.q, problem.k_pool, problem.v_pool, layer, problem.tables, problem.context_lens,
        problem.query_starts,
    )  # fmt: skip
    scales = {
        name: None if each is None else np.asarray(each)
        for name, each in (("k_scales", problem.k_scales), ("v_scales", problem.v_scales))
    }
    return reference.paged_prefill(*map(np.asarray, arrays), scale=problem.scale, **scales)


@partial(jax.jit, static_argnums=8)
def _exact_row(
    q: jax.Array,  # [queries, H, D]
    first_position: jax.Array,  # scalar
    table: jax.Array,  # [P]
    layer: jax.Array,  # scalar
    k_pool: jax.Array,
    v_pool: jax.Array,
    k_scales: jax.Array | None,
    v_scales: jax.Array | None,
    scale: float,
) -> jax.Array:  # [queries, H, D] float32
    count, heads, width = q.shape
    k, v = (
        _wide(pool, scales, layer, table)
        for pool, scales in ((k_pool, k_scales), (v_pool, v_scales))
    )
    keys = jnp.arange(k.shape[1])
    at_once = min(QUERIES_AT_ONCE, count)
    padded = jnp.pad(q.astype(jnp.float32), ((0, -count % at_once), (0, 0), (0, 0)))
    tiles = padded.reshape(-1, at_once, k.shape[0], heads // k.shape[0], width)

    def one_tile(given: tuple[jax.Array, jax.Array]) -> jax.Array:
        index, tile = given
        seen = keys[None] <= (first_position + index * at_once + jnp.arange(at_once))[:, None]
        scores = jnp.einsum("qkgd,ksd->kgqs", tile, k, precision="highest") * scale
        weights = jax.nn.softmax(jnp.where(seen[None, None], scores, -1e30), axis=-1)
        return jnp.einsum("kgqs,ksd->qkgd", weights, v, precision="highest")

    out = lax.map(one_tile, (jnp.arange(tiles.shape[0]), tiles))
    return out.reshape(-1, heads, width)[:count]


def _wide(
    pool: jax.Array, scales: jax.Array | None, layer: jax.Array, table: jax.Array
) -> jax.Array:  # [K, P * T, D] float32
    found = pool[layer, table]  # [P, K, T, D]
    found = decode(found, jnp.dtype("float32")) if scales is not None else found
    found = found.astype(jnp.float32)
    if scales is not None:
        found = found * scales[layer, table][..., None].astype(jnp.float32)
    return found.transpose(1, 0, 2, 3).reshape(found.shape[1], -1, found.shape[3])
