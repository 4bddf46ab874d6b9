"""The prefix trie: full blocks of tokens, found again by the tokens they hold.

The trie's keys are exact: a node is found by its parent and by the tuple of its block's tokens, so
two different contents are never confused. A namespace stands for everything else that keys and
values depend on, such as a cache salt.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Sequence


class Node:
    """One full block of tokens, which follow the tokens of its ancestors.

    key: the block's tokens. A root has no block and no parent, and its key is the namespace.
    """

    __slots__ = ("alive", "block", "children", "key", "parent")

    def __init__(self, parent: Node | None, key: Hashable, block: int | None) -> None:
        self.parent = parent
        self.key = key
        self.block = block
        self.children: dict[Hashable, Node] = {}
        self.alive = True


class PrefixTrie:
    """Which blocks can be found by their tokens. It knows nothing of references to blocks."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._nodes: list[Node | None] = [None] * num_blocks
        self._roots: dict[Hashable, Node] = {}

    def __contains__(self, block: int) -> bool:
        return self._nodes[block] is not None

    def match(self, namespace: Hashable, tokens: Sequence[int]) -> list[Node]:
        """Return the nodes of the longest known prefix of `tokens`, in whole blocks."""
        nodes: list[Node] = []
        node = self._roots.get(namespace)
        size = self._block_size
        for start in range(0, len(tokens) - size + 1, size):
            node = node and node.children.get(tuple(tokens[start : start + size]))
            if node is None:
                break
            nodes.append(node)
        return nodes

    def enter(
        self, namespace: Hashable, parent: Node | None, tokens: Sequence[int], block: int
    ) -> Node:
        """Make a full block findable below `parent` (None: the root) and return its node.

        If the trie has that content already, the known node is returned and `block` stays
        private. Nothing is entered below a parent that was evicted or cleared, because nothing
        below it can be found.
        """
        if parent is None:
            parent = self._roots.setdefault(namespace, Node(None, namespace, None))
        if not parent.alive:
            return parent
        key = tuple(tokens)
        node = parent.children.get(key)
        if node is None:
            if block in self:
                raise ValueError(f"block {block} is in the trie already")
            node = Node(parent, key, block)
            parent.children[key] = self._nodes[block] = node
        return node

    def clear(self) -> list[int]:
        """Remove everything; return the blocks removed."""
        removed = [block for root in self._roots.values() for block in self._detach(root)]
        self._roots.clear()
        return removed

    def forget(self, namespace: Hashable) -> list[int]:
        """Remove one namespace; return the blocks removed."""
        root = self._roots.pop(namespace, None)
        return [] if root is None else self._detach(root)

    def remove(self, node: Node) -> list[int]:
        """Remove a node and all nodes below it; return their blocks."""
        assert node.parent is not None
        del node.parent.children[node.key]
        if node.parent.parent is None and not node.parent.children:
            del self._roots[node.parent.key]
        return self._detach(node)

    def victim(self, candidates: Iterable[int], cached: Container[int]) -> Node:
        """Return a leaf at or below one of `candidates`, or the first candidate's node.

        candidates: cached blocks, least recently used first; at least one.
        A block is older than its children only where requests hold different copies of one
        content; then the oldest block may have descendants that are younger or in use.
        """
        first: Node | None = None
        for block in candidates:
            node = self._nodes[block]
            assert node is not None
            first = first or node
            while node.children:
                below = (each for each in node.children.values() if each.block in cached)
                child = next(below, None)
                if child is None:
                    break
                node = child
            else:
                return node
        assert first is not None
        return first

    def check(self) -> None:
        """Raise AssertionError unless the tree and its index by block agree."""
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

    def _detach(self, top: Node) -> list[int]:
        """Mark a subtree as removed and return its blocks."""
        removed = []
        stack = [top]
        while stack:
            node = stack.pop()
            node.alive = False
            stack += node.children.values()
            node.children = {}
            if node.block is not None:
                self._nodes[node.block] = None
                removed.append(node.block)
        return removed
