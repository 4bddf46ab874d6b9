"""The block pool's bookkeeping: which of the N blocks are free, shared, or cached, and by whom.

Ints only; the keys and values themselves are in `kv_cache`. Paged memory as in "Efficient Memory
Management for Large Language Model Serving with PagedAttention" (arXiv 2309.06180). A block is in
exactly one of three states:

    free        on the free list; its content means nothing
    referenced  in at least one block table; may be in the prefix trie as well
    cached      in the prefix trie and in no block table; evicted, oldest first, when needed

The trie's keys are exact: a node is found by its parent and by the tuple of its block's tokens, so
no two contents can be confused. A namespace holds everything else that changes keys.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from itertools import islice

WATERMARK = 32  # one in so many blocks stays free when a request is admitted beside others
MOST_TRIED = 8  # blocks looked at for one eviction


def watermark(num_blocks: int) -> int:
    """Blocks kept free at admission, so that a new prompt does not evict a running request."""
    return num_blocks // WATERMARK


def with_watermark(num_needed: int) -> int:
    """Blocks of a pool in which so many can be filled."""
    return num_needed + num_needed // (WATERMARK - 1) + 1


class Node:
    """One full block of tokens after those of its ancestors.

    key: the block's tokens. A root has no block and no parent, and its key is the namespace.
    """

    __slots__ = ("alive", "block", "children", "key", "parent")

    def __init__(self, parent: Node | None, key: Hashable, block: int | None) -> None:
        self.parent = parent
        self.key = key
        self.block = block
        self.children: dict[Hashable, Node] = {}
        self.alive = True


class BlockPool:
    """N blocks of T tokens each. Allocation and release cost O(1) a block."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        # Popped from the end, so that the lowest ids go first and a small load stays compact.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._num_refs = [0] * num_blocks
        self._nodes: list[Node | None] = [None] * num_blocks
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._roots: dict[Hashable, Node] = {}
        self.version = 0  # of the cached content; `clear` starts a new one

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks with reusable content that nobody holds."""
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
        """Take `count` blocks, each with one reference; MemoryError if there are too few."""
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
        """Drop one reference of each block of a table; ValueError for a block nobody holds.

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
            if self._nodes[block] is None:
                self._free.append(block)
            else:
                self._cached[block] = None

    def is_writable(self, block: int) -> bool:
        """Whether one holder alone may write: a shared or cached block is copied first."""
        return self._num_refs[block] == 1 and self._nodes[block] is None

    def num_refs(self, block: int) -> int:
        """How many tables name the block."""
        return self._num_refs[block]

    # -- the prefix trie -----------------------------------------------------------------------

    def match(self, namespace: Hashable, tokens: Sequence[int]) -> list[Node]:
        """The nodes of the longest known prefix of `tokens` in whole blocks."""
        nodes: list[Node] = []
        node = self._roots.get(namespace)
        for start in range(0, len(tokens) - self.block_size + 1, self.block_size):
            node = node and node.children.get(tuple(tokens[start : start + self.block_size]))
            if node is None:
                break
            nodes.append(node)
        return nodes

    def enter(
        self, namespace: Hashable, parent: Node | None, tokens: Sequence[int], block: int
    ) -> Node:
        """Make a referenced, full block findable below `parent` (None: first); return its node.

        If that content is known already, the known node is returned and `block` stays private.
        Below a parent that was evicted or cleared nothing can be found, so nothing is entered.
        """
        if parent is None:
            parent = self._roots.setdefault(namespace, Node(None, namespace, None))
        key = tuple(tokens)
        if len(key) != self.block_size or not self._num_refs[block]:
            raise ValueError(f"block {block} with {len(key)} tokens is not a held, full block")
        if not parent.alive:
            return parent
        node = parent.children.get(key)
        if node is None:
            if self._nodes[block] is not None:
                raise ValueError(f"block {block} is in the trie already")
            node = Node(parent, key, block)
            parent.children[key] = self._nodes[block] = node
        return node

    def clear(self) -> None:
        """Forget all cached content; blocks in use stay with their holders."""
        for root in self._roots.values():
            self._detach(root)
        self._roots.clear()
        self.version += 1

    def forget(self, namespace: Hashable) -> None:
        """Forget the content of one namespace; blocks in use stay with their holders."""
        root = self._roots.pop(namespace, None)
        if root is not None:
            self._detach(root)

    def _evict(self) -> None:
        """Free a least recently used cached block, and whatever is found only through it."""
        node = self._victim()
        assert node.parent is not None
        del node.parent.children[node.key]
        if node.parent.parent is None and not node.parent.children:
            del self._roots[node.parent.key]
        self._detach(node)

    def _victim(self) -> Node:
        """A leaf, if one of the oldest blocks leads to one.

        A block is older than its children only where requests hold different copies of one
        content; then the oldest may have descendants that are younger or in use.
        """
        for block in islice(self._cached, MOST_TRIED):
            node = self._nodes[block]
            assert node is not None
            while node.children:
                cached = (each for each in node.children.values() if each.block in self._cached)
                child = next(cached, None)
                if child is None:
                    break
                node = child
            else:
                return node
        oldest = self._nodes[next(iter(self._cached))]
        assert oldest is not None
        return oldest

    def _detach(self, top: Node) -> None:
        """Take a subtree out of the trie. Its unreferenced blocks become free."""
        stack = [top]
        while stack:
            node = stack.pop()
            node.alive = False
            stack += node.children.values()
            node.children = {}
            if node.block is not None:
                self._nodes[node.block] = None
                if node.block in self._cached:
                    del self._cached[node.block]
                    self._free.append(node.block)

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
            assert block not in free or self._nodes[block] is None, f"free block {block} is cached"
        self._check_trie()

    def _check_trie(self) -> None:
        found = 0
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            assert node.alive, "a dead node can be found"
            for key, child in node.children.items():
                assert child.key == key and child.parent is node, "a node is misplaced"
                assert child.block is not None and self._nodes[child.block] is child
                found += 1
            stack += node.children.values()
        assert found == sum(node is not None for node in self._nodes), "a node cannot be found"
