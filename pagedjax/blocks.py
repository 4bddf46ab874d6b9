"""The block pool's bookkeeping: which of the N blocks are free, and who holds the others.

Ints only; the keys and values themselves are in `kv_cache`. Paged memory as in "Efficient Memory
Management for Large Language Model Serving with PagedAttention" (arXiv 2309.06180).
"""

from __future__ import annotations

from collections.abc import Iterable


class BlockPool:
    """N blocks of T tokens each. Allocation and release cost O(1) a block.

    A block is either on the free list or has a reference count of at least one.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        # Popped from the end, so that the lowest ids go first and a small load stays compact.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._num_refs = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def can_allocate(self, count: int) -> bool:
        """Whether `count` blocks are free."""
        return count <= len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, each with one reference; MemoryError if there are too few."""
        if not self.can_allocate(count):
            raise MemoryError(f"{count} blocks wanted, {len(self._free)} of {self.num_blocks} free")
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._num_refs[block] = 1
        return taken

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each block; ValueError for a block that nobody holds."""
        for block in blocks:
            if self._num_refs[block] < 1:
                raise ValueError(f"block {block} is released twice")
            self._num_refs[block] -= 1
            if not self._num_refs[block]:
                self._free.append(block)

    def check(self, tables: Iterable[list[int]] = ()) -> None:
        """Raise AssertionError unless every invariant holds.

        tables: the block tables of all live requests; a block's count must equal the number of
        tables that name it.
        """
        named = [0] * self.num_blocks
        for table in tables:
            for block in table:
                named[block] += 1
        free = set(self._free)
        assert len(free) == len(self._free), "a block is twice on the free list"
        for block in range(self.num_blocks):
            assert (block in free) == (self._num_refs[block] == 0), (
                f"block {block} is in two states"
            )
            assert self._num_refs[block] == named[block], f"block {block} leaks or is shared"
