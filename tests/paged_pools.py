"""Random paged attention problems in which whatever must not be read is poisoned."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

LAYERS, LAYER = 3, 1  # neither the first nor the last is used
GARBAGE = np.array([-1, -(2**31), 10**6, 2**31 - 1])  # what a table may hold past its context


@dataclass(frozen=True)
class Problem:
    """Pools `[L, N, K, T, D]` in which only `context_lens` keys of each row are finite."""

    k_pool: np.ndarray
    v_pool: np.ndarray
    tables: np.ndarray  # [B, P]
    context_lens: np.ndarray  # [B]

    def cast(self, dtype: str) -> list[np.ndarray]:
        """The pools rounded to `dtype`, then layer, tables and lengths: arguments of an op."""
        pools = [np.asarray(pool).astype(jnp.dtype(dtype)) for pool in (self.k_pool, self.v_pool)]
        return [*pools, np.int32(LAYER), self.tables, self.context_lens]


def problem(
    context_lens: list[int], kv_heads: int, size: int, width: int, seed: int, spare: int = 2
) -> Problem:
    """Rows of these lengths over shuffled pages of `size` tokens; `spare` pages are nobody's."""
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
