"""The block pool's bookkeeping: which of the N blocks are free, referenced or cached.

Ints only; the keys and values themselves are in `kv_cache`. Paged memory as in "Efficient Memory
Management for Large Language Model Serving with PagedAttention" (arXiv 2309.06180). A block is in
exactly one of three states:

    free        on the free list; its content is meaningless
    referenced  in at least one block table; may be in the prefix trie as well
    cached      in the prefix trie and in no block table; evicted, oldest first, when needed
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from itertools import islice

from pagedjax.schedule.prefix_trie import Node, PrefixTrie

WATERMARK = 32  # 1/32 of the pool stays free when a request is admitted beside others
MOST_TRIED = 8  # cached blocks looked at for one eviction


def watermark(num_blocks: int) -> int:
    """Blocks kept free at admission, so that a new prompt does not preempt a running request."""
    return num_blocks // WATERMARK


def with_watermark(num_needed: int) -> int:
    """Smallest pool size in which `num_needed` blocks can be filled despite the watermark."""
    return num_needed + num_needed // (WATERMARK - 1) + 1


class BlockPool:
    """N blocks of T tokens each. Allocation and release cost O(1) a block."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        # Popped from the end, so that the lowest ids go first and a small load stays compact.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._num_refs = [0] * num_blocks
        self._trie = PrefixTrie(num_blocks, block_size)
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self.version = 0  # of the cached content; `clear` starts a new one

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks with reusable content that are in no block table."""
        return len(self._cached)

    @property
    def num_referenced(self) -> int:
        """Blocks in at least one block table, each counted once."""
        return self.num_blocks - self.num_free - self.num_cached

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    # -- owning --------------------------------------------------------------------------------

    def can_allocate(self, count: int) -> bool:
        """Whether `count` blocks are free or can be made so by eviction."""
        return count <= len(self._free) + len(self._cached)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, each with one reference; MemoryError if too few are available."""
        if not self.can_allocate(count):
            raise MemoryError(
                f"{count} blocks wanted; {self.num_free} of {self.num_blocks} free, "
                f"{self.num_cached} cached"
            )
        taken = []
        for _ in range(count):
            if not self._free:
                self._evict()
            taken.append(self._free.pop())
            self._num_refs[taken[-1]] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add one reference to each block; ValueError for one that holds nothing."""
        blocks = list(blocks)
        for block in blocks:
            if not self._num_refs[block] and block not in self._cached:
                raise ValueError(f"block {block} is free and cannot be shared")
        for block in blocks:
            self._cached.pop(block, None)
            self._num_refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each block of a table; ValueError for a block without references.

        The last block goes first, so that of the blocks left in the cache a child is always
        evicted before its parent.
        """
        for block, count in Counter(blocks).items():
            if self._num_refs[block] < count:
                raise ValueError(f"block {block} is released twice")
        for block in reversed(blocks):
            self._num_refs[block] -= 1
            if self._num_refs[block]:
                continue
            if block not in self._trie:
                self._free.append(block)
            else:
                self._cached[block] = None

    def is_writable(self, block: int) -> bool:
        """Whether one holder alone may write: a shared or cached block is copied first."""
        return self._num_refs[block] == 1 and block not in self._trie

    def num_refs(self, block: int) -> int:
        """How many tables name the block."""
        return self._num_refs[block]

    # -- the prefix trie -----------------------------------------------------------------------

    def match(self, namespace: Hashable, tokens: Sequence[int]) -> list[Node]:
        """Return the nodes of the longest known prefix of `tokens`, in whole blocks."""
        return self._trie.match(namespace, tokens)

    def enter(
        self, namespace: Hashable, parent: Node | None, tokens: Sequence[int], block: int
    ) -> Node:
        """Make a referenced, full block findable; see `PrefixTrie.enter`."""
        if len(tokens) != self.block_size or not self._num_refs[block]:
            raise ValueError(f"block {block} with {len(tokens)} tokens is not a held, full block")
        return self._trie.enter(namespace, parent, tokens, block)

    def clear(self) -> None:
        """Forget all cached content; blocks in use stay with their holders."""
        self._free_cached(self._trie.clear())
        self.version += 1

    def forget(self, namespace: Hashable) -> None:
        """Forget the content of one namespace; blocks in use stay with their holders."""
        self._free_cached(self._trie.forget(namespace))

    def _evict(self) -> None:
        """Free a least recently used cached block, and cached blocks found only through it."""
        oldest = islice(self._cached, MOST_TRIED)
        self._free_cached(self._trie.remove(self._trie.victim(oldest, self._cached)))

    def _free_cached(self, blocks: Iterable[int]) -> None:
        """Put those blocks on the free list that were cached; the others are in use."""
        for block in blocks:
            if block in self._cached:
                del self._cached[block]
                self._free.append(block)

    # -- invariants ----------------------------------------------------------------------------

    def check(self, tables: Iterable[Sequence[int]] = ()) -> None:
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
        for block, count in enumerate(self._num_refs):
            states = (block in free) + (block in self._cached) + (count > 0)
            assert states == 1, f"block {block} is in {states} states"
            assert count == named[block], f"block {block}: {count} references, {named[block]} named"
            assert block not in free or block not in self._trie, f"free block {block} is cached"
        self._trie.check()
