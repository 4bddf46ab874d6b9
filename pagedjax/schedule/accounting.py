"""Memory accounting of a block pool: blocks and tokens, with and without sharing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pagedjax.schedule.blocks import BlockPool


@dataclass(frozen=True)
class PoolAccounting:
    """A snapshot. Always `num_free_blocks + num_cached_blocks + num_referenced_blocks ==
    num_blocks`: each block is counted once, however many sequences share it.

    num_shared_blocks: referenced blocks that are in more than one block table.
    num_table_blocks: entries of all block tables, the blocks needed without sharing.
    logical_tokens: tokens of all sequences. physical_tokens: token slots that hold their keys.
    tokens_saved: tokens whose keys are stored once for several sequences.
    """

    num_blocks: int
    num_free_blocks: int
    num_cached_blocks: int
    num_referenced_blocks: int
    num_shared_blocks: int
    num_table_blocks: int
    block_size: int
    logical_tokens: int
    physical_tokens: int
    tokens_saved: int

    @property
    def blocks_saved(self) -> int:
        """Blocks saved by sharing."""
        return self.num_table_blocks - self.num_referenced_blocks

    @property
    def kv_utilization(self) -> float:
        """Share of the referenced blocks' token slots that hold keys; 0 without any."""
        return self.physical_tokens / max(self.num_referenced_blocks * self.block_size, 1)


def account(blocks: BlockPool, tables: Iterable[tuple[Sequence[int], int]]) -> PoolAccounting:
    """Count the pool's blocks and the tokens in them.

    tables: for every live sequence, its block table and the number of its tokens with keys in the
        pool; blocks beyond those tokens are allocated and empty.
    """
    size = blocks.block_size
    filled: dict[int, int] = {}  # most tokens that any sequence has in the block
    num_table_blocks = logical = 0
    for table, length in tables:
        logical += length
        num_table_blocks += len(table)
        for index, block in enumerate(table):
            here = min(max(length - index * size, 0), size)
            filled[block] = max(filled.get(block, 0), here)
    num_shared = sum(blocks.num_refs(block) > 1 for block in filled)
    physical = sum(filled.values())
    return PoolAccounting(
        num_blocks=blocks.num_blocks,
        num_free_blocks=blocks.num_free,
        num_cached_blocks=blocks.num_cached,
        num_referenced_blocks=blocks.num_referenced,
        num_shared_blocks=num_shared,
        num_table_blocks=num_table_blocks,
        block_size=size,
        logical_tokens=logical,
        physical_tokens=physical,
        tokens_saved=logical - physical,
    )
