"""Random operations on a block pool, checked against a model of each block's contents.

A key depends on all tokens before it, on the namespace and on the version of the weights. The
model therefore stores exactly these for each position, and a cached block that is found must hold
the keys that its finder expects.
"""

from collections import Counter
from dataclasses import dataclass

import pytest

NUM_BLOCKS = 14
BLOCK_SIZE = 2
MAX_LIVE = 6
MAX_TOKENS = 14


class Model:
    """The content of each slot of each block: (namespace, version, all tokens up to this one)."""

    def __init__(self, pool):
        self.pool = pool
        self.slots = [[None] * pool.block_size for _ in range(pool.num_blocks)]

    def write(self, table, position, key):
        block, offset = table[position // self.pool.block_size], position % self.pool.block_size
        assert self.pool.is_writable(block)
        self.slots[block][offset] = key

    def copy(self, source, target):
        assert self.pool.is_writable(target)
        self.slots[target] = list(self.slots[source])

    def check(self, live):
        """Check the pool's invariants and the keys of every live request and of the trie."""
        self.pool.check([request.table for request in live])
        for request in live:
            held = [key for block in request.table for key in self.slots[block]]
            assert held[: len(request.keys)] == request.keys
        for namespace, root in self.pool._trie._roots.items():
            stack = [(child, ()) for child in root.children.values()]
            while stack:
                node, before = stack.pop()
                for i, key in enumerate(self.slots[node.block]):
                    assert key == (namespace, self.pool.version, before + node.key[: i + 1])
                stack += [(child, before + node.key) for child in node.children.values()]


@dataclass
class Live:
    """A running request; `nodes` has one entry per full block that was entered."""

    namespace: str
    version: int
    tokens: list
    table: list
    nodes: list
    keys: list


class Driver:
    """Applies the operations of an engine to the pool, chosen by the bytes of a program."""

    def __init__(self, pool):
        self.pool, self.model = pool, Model(pool)
        self.live, self.waiting = [], []
        self.seen = Counter()  # events by name

    def run(self, program):
        steps = (
            self.admit, self.append, self.append, self.append, self.fork, self.free,
            self.evict, self.preempt, self.rollback, self.clear, self.readmit, self.free_twice,
        )  # fmt: skip
        for at in range(0, len(program), 3):
            operation, a, b = program[at : at + 3]
            # Clear rarely, otherwise hits would be rare.
            step = steps[operation % len(steps)]
            if step != self.clear or b < 40:
                step(a, b)
            self.model.check(self.live)

    def pick(self, a):
        return self.live[a % len(self.live)] if self.live else None

    # -- operations ----------------------------------------------------------------------------

    def admit(self, a, b):
        """Few namespaces and prefixes, so that many prompts begin alike."""
        start = [[1, 1, 1, 1, 1, 1], [1, 1, 2, 2, 1, 1], [2, 2, 1, 1, 2, 2]][a % 3]
        tail = [1 + (b >> i & 1) for i in range(b % 5)]
        self.start("xyz"[a // 3 % 3], start[: 1 + a // 9 % 6] + tail)

    def start(self, namespace, tokens):
        if len(self.live) == MAX_LIVE:
            return
        pool, size = self.pool, self.pool.block_size
        hits = pool.match(namespace, tokens[: (len(tokens) - 1) // size * size])
        table = [node.block for node in hits]
        pool.share(table)
        need = pool.blocks_for(len(tokens)) - len(hits)
        if not pool.can_allocate(need):
            self.seen["refused"] += 1
            pool.release(table)
            return
        self.seen["admit"] += 1
        self.seen["hit"] += bool(hits)
        table += self.allocate(need)
        keys = [(namespace, pool.version, tuple(tokens[: i + 1])) for i in range(len(tokens))]
        request = Live(namespace, pool.version, list(tokens), table, list(hits), keys)
        self.live.append(request)
        for position in range(len(hits) * size, len(tokens)):
            self.model.write(table, position, keys[position])
        self.enter(request)

    def append(self, a, b):
        request = self.pick(a)
        if request is None or len(request.tokens) == MAX_TOKENS:
            return
        position = len(request.tokens)
        new_block = position % self.pool.block_size == 0
        if new_block or not self.pool.is_writable(request.table[-1]):
            if not self.make_room(request):
                return
            # No copy is needed if the request that shared the block was preempted.
            if new_block:
                request.table += self.allocate(1)
            elif not self.pool.is_writable(request.table[-1]):
                self.copy_last(request)
        request.tokens.append(1 + b % 2)
        request.keys.append((request.namespace, self.pool.version, tuple(request.tokens)))
        self.model.write(request.table, position, request.keys[-1])
        self.enter(request)
        self.seen["append"] += 1

    def fork(self, a, b):
        request = self.pick(a)
        if request is None or len(self.live) == MAX_LIVE:
            return
        self.pool.share(request.table)
        copies = [list(each) for each in (request.tokens, request.table, request.nodes)]
        self.live.append(Live(request.namespace, request.version, *copies, list(request.keys)))
        self.seen["fork"] += 1

    def free(self, a, b):
        if self.live:
            self.pool.release(self.live.pop(a % len(self.live)).table)
            self.seen["free"] += 1

    def evict(self, a, b):
        """Allocate all free and some cached blocks, and release them again."""
        count = self.pool.num_free + min(a % 4, self.pool.num_cached)
        taken = self.allocate(count)
        with pytest.raises(MemoryError):
            self.pool.allocate(self.pool.num_free + self.pool.num_cached + 1)
        self.model.check([*self.live, Live("", 0, [], taken, [], [])])
        self.pool.release(taken)
        self.seen["evict"] += bool(taken)

    def preempt(self, a, b):
        if self.live:
            request = self.live.pop()
            self.pool.release(request.table)
            self.waiting.append((request.namespace, request.tokens))
            self.seen["preempt"] += 1

    def readmit(self, a, b):
        if self.waiting:
            self.start(*self.waiting.pop())

    def rollback(self, a, b):
        request = self.pick(a)
        if request is None:
            return
        length = 1 + b % len(request.tokens)
        blocks = self.pool.blocks_for(length)
        self.pool.release(request.table[blocks:])
        del request.table[blocks:], request.tokens[length:], request.keys[length:]
        del request.nodes[length // self.pool.block_size :]
        self.seen["rollback"] += 1

    def clear(self, a, b):
        """New weights: no old block is found, and requests with old keys enter no more blocks."""
        self.seen["new version"] += 1
        self.seen["live requests at a new version"] += bool(self.live)
        version = self.pool.version
        self.pool.clear()
        assert self.pool.version != version and self.pool.num_cached == 0
        assert all(not self.pool.match(each.namespace, each.tokens) for each in self.live)

    def free_twice(self, a, b):
        """A block that no request holds cannot be released."""
        block = a % self.pool.num_blocks
        if not self.pool.num_refs(block):
            with pytest.raises(ValueError, match="twice"):
                self.pool.release([block])
            self.seen["free twice"] += 1

    # -- parts of operations -------------------------------------------------------------------

    def allocate(self, count):
        cached = self.pool.num_cached
        taken = self.pool.allocate(count)
        assert len(set(taken)) == count and all(self.pool.is_writable(block) for block in taken)
        self.seen["eviction"] += self.pool.num_cached < cached
        return taken

    def make_room(self, request):
        """Preempt the newest requests until a block is free; False if `request` was preempted."""
        while not self.pool.can_allocate(1):
            self.seen["pressure"] += 1
            newest = self.live[-1]
            self.preempt(0, 0)
            if newest is request:
                return False
        return True

    def copy_last(self, request):
        self.seen["copy on write"] += 1
        (block,) = self.allocate(1)
        self.model.copy(request.table[-1], block)
        self.pool.release([request.table[-1]])
        request.table[-1] = block

    def enter(self, request):
        """Enter the full blocks in the cache, unless their keys are of more than one version."""
        size = self.pool.block_size
        while request.version == self.pool.version and (len(request.nodes) + 1) * size <= len(
            request.tokens
        ):
            index = len(request.nodes)
            parent = request.nodes[-1] if request.nodes else None
            key, block = request.tokens[index * size : (index + 1) * size], request.table[index]
            node = self.pool.enter(request.namespace, parent, key, block)
            request.nodes.append(node)
            if node.alive and all(each.alive for each in request.nodes):
                found = self.pool.match(request.namespace, request.tokens)
                assert found[: index + 1] == request.nodes
            self.seen["duplicate"] += node.alive and node.block != block


WORK = (
    "admit", "append", "fork", "free", "evict", "preempt", "rollback", "new version", "free twice",
)  # fmt: skip
EVENTS = (
    "hit", "refused", "eviction", "pressure", "copy on write", "duplicate",
    "live requests at a new version",
)  # fmt: skip
