"""What running requests hold: slots, blocks, and their places in the prefix trie."""

from __future__ import annotations

from collections.abc import Sequence

from pagedjax.schedule.blocks import BlockPool, Node
from pagedjax.schedule.request import Request


class Holdings:
    """Gives slots and blocks to requests and takes them back. The scheduler decides when.

    prefix_caching: whether full blocks are cached and found again by their tokens.
    """

    def __init__(self, blocks: BlockPool, num_slots: int, prefix_caching: bool) -> None:
        self.blocks = blocks
        self.prefix_caching = prefix_caching
        self.free_slots = list(range(num_slots - 1, -1, -1))

    def start(self, request: Request, spare_blocks: int) -> bool:
        """Give a request a slot, its cached prefix, and blocks for all tokens known so far.

        Returns False and takes nothing if fewer than `spare_blocks` blocks would stay available.
        """
        nodes = self._known_prefix(request)
        hits = [node.block for node in nodes if node.block is not None]
        self.blocks.share(hits)
        need = self.blocks.blocks_for(request.num_tokens) - len(hits)
        if not self.blocks.can_allocate(need + spare_blocks):
            self.blocks.release(hits)
            return False
        self._hold(request, hits + self.blocks.allocate(need), nodes, self.blocks.version)
        request.num_computed = len(hits) * self.blocks.block_size
        return True

    def join(self, child: Request, parent: Request, num_computed: int) -> None:
        """Give `child` a slot, and the blocks of the parent's first `num_computed` tokens."""
        shared = parent.block_ids[: self.blocks.blocks_for(num_computed)]
        self.blocks.share(shared)
        self._hold(child, shared, list(parent.nodes), parent.cache_version)
        child.num_computed = num_computed

    def release(self, request: Request) -> None:
        """Take back slot and blocks; the request must be computed again."""
        self.blocks.release(request.block_ids)
        assert request.slot is not None
        self.free_slots.append(request.slot)
        request.block_ids, request.nodes, request.slot = [], [], None
        request.num_computed, request.slot_has_token = 0, False

    def can_write(self, request: Request) -> bool:
        """Whether the request has a private block for its next token."""
        index = request.num_computed // self.blocks.block_size
        return index < len(request.block_ids) and self.blocks.is_writable(request.block_ids[index])

    def take_block(self, request: Request) -> tuple[int, int] | None:
        """Give the request a private block; return (from, to) if a shared block must be copied."""
        index = request.num_computed // self.blocks.block_size
        old, new = request.block_ids[index : index + 1], self.blocks.allocate(1)
        request.block_ids[index : index + 1] = new
        self.blocks.release(old)
        return (old[0], new[0]) if old else None

    def rewind(self, request: Request) -> None:
        """Give back blocks that the request's tokens no longer need, after it lost some.

        Its last token is computed again, because its logits determine the next token.
        """
        request.num_computed = min(request.num_computed, len(request.tokens) - 1)
        request.slot_has_token = False
        # A request that is being recomputed got the blocks of all its tokens at once.
        keep = self.blocks.blocks_for(len(request.tokens))
        self.blocks.release(request.block_ids[keep:])
        del request.block_ids[keep:]
        del request.nodes[request.num_computed // self.blocks.block_size :]

    def enter_full_blocks(self, request: Request) -> None:
        """Enter the request's full blocks into the trie: known tokens, keys computed or planned.

        A request that started under other weights enters nothing more.
        """
        if not self.prefix_caching or request.cache_version != self.blocks.version:
            return
        size = self.blocks.block_size
        full = min(request.num_computed, len(request.tokens)) // size
        for index in range(len(request.nodes), full):
            parent = request.nodes[-1] if request.nodes else None
            tokens = request.tokens[index * size : (index + 1) * size]
            request.nodes.append(
                self.blocks.enter(request.namespace, parent, tokens, request.block_ids[index])
            )

    def _known_prefix(self, request: Request) -> list[Node]:
        """Cached full blocks of the request's tokens; the last token is always computed."""
        if not self.prefix_caching:
            return []
        nodes = self.blocks.match(request.namespace, request.tokens[:-1])
        if request.score:
            # The score at a block's last position is about the next block's first token, which
            # must be known to be the same. `Scores` copies the scores of shared blocks.
            return nodes[:-1]
        if request.scores_prompt:
            return nodes[: request.num_scored // self.blocks.block_size]
        return nodes

    def _hold(
        self, request: Request, block_ids: Sequence[int], nodes: list[Node], version: int
    ) -> None:
        request.block_ids, request.nodes = list(block_ids), nodes
        request.cache_version = version
        request.slot = self.free_slots.pop()
