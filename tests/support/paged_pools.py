"""Random paged attention problems in which everything that must not be read is poisoned."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from pallas_kernels.formats import quantise

LAYERS, LAYER = 3, 1  # neither the first nor the last is used
GARBAGE = np.array([-1, -(2**31), 10**6, 2**31 - 1])  # possible table entries past the context
POISON = {"int8": -128, "fp8": 0x7F}  # 0x7F is NaN in fp8; int8 has no NaN and never stores -128


@dataclass(frozen=True)
class Problem:
    """Pools `[L, N, K, T, D]` in which only `context_lens` keys of each row are finite."""

    k_pool: np.ndarray
    v_pool: np.ndarray
    tables: np.ndarray  # [B, P]
    context_lens: np.ndarray  # [B]

    def cast(self, dtype: str) -> list[np.ndarray]:
        """Arguments of an op: the pools rounded to `dtype`, layer, tables and context lengths."""
        pools = [np.asarray(pool).astype(jnp.dtype(dtype)) for pool in (self.k_pool, self.v_pool)]
        return [*pools, np.int32(LAYER), self.tables, self.context_lens]

    def quantise(self, name: str) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """`cast` for a one-byte format, and the scales, which are NaN where nothing is stored."""
        pools, scales = [], {}
        for key, pool in (("k_scales", self.k_pool), ("v_scales", self.v_pool)):
            unused = np.isnan(pool)
            stored, found = (np.array(each) for each in quantise(np.where(unused, 0, pool), name))
            stored[unused] = POISON[name]
            found[unused.any(axis=-1)] = np.nan
            pools.append(stored)
            scales[key] = found
        return [*pools, np.int32(LAYER), self.tables, self.context_lens], scales

    def forget(self, oldest: list[int]) -> "Problem":
        """The same problem with keys and table entries before each row's `oldest` poisoned."""
        k_pool, v_pool, tables = self.k_pool.copy(), self.v_pool.copy(), self.tables.copy()
        size = k_pool.shape[3]
        for row, first in enumerate(oldest):
            for key in range(min(first, self.context_lens[row])):
                for pool in (k_pool, v_pool):
                    pool[LAYER, self.tables[row, key // size], :, key % size] = np.nan
            tables[row, : first // size] = GARBAGE[row % len(GARBAGE)]
        return Problem(k_pool, v_pool, tables, self.context_lens)


def problem(
    context_lens: list[int], kv_heads: int, size: int, width: int, seed: int, spare: int = 2
) -> Problem:
    """Rows of these lengths over shuffled pages of `size` tokens, with `spare` unused pages."""
    rng = np.random.default_rng(seed)
    pages = [-(-length // size) for length in context_lens]
    blocks = sum(pages) + spare
    free = list(rng.permutation(blocks))
    tables = rng.choice(GARBAGE, (len(pages), max(pages) + spare)).astype(np.int32)
    k_pool, v_pool = np.full((2, LAYERS, blocks, kv_heads, size, width), np.nan, np.float32)
    for row, length in enumerate(context_lens):
        for page in range(pages[row]):
            block, used = free.pop(), min(size, length - page * size)
            tables[row, page] = block
            k_pool[LAYER, block, :, :used] = 2 * rng.normal(size=(kv_heads, used, width))
            v_pool[LAYER, block, :, :used] = rng.normal(size=(kv_heads, used, width))
    return Problem(k_pool, v_pool, tables, np.array(context_lens, np.int32))


def queries(tokens: int, heads: int, width: int, dtype: str, seed: int = 0) -> np.ndarray:
    """Random queries [tokens, heads, width]."""
    values = np.random.default_rng(seed).normal(size=(tokens, heads, width))
    return values.astype(np.float32).astype(jnp.dtype(dtype))


def starts(counts: list[int]) -> np.ndarray:
    """Start of each row's queries, given their numbers per row."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
