"""Blocks saved by sharing: parallel samples, beams, and a common system prompt.

Each scenario runs alone on a real pool that is large enough for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from bench.memory.request_mix import MAX_SEQ_LEN, Lengths, RequestMix, stream
from pagedjax.schedule.accounting import PoolAccounting, account
from pagedjax.schedule.blocks import BlockPool

# Steps between two looks at the pool; coprime to the block sizes, so that all fill levels occur.
LOOK_EVERY = 11
# Beams (see `survivors`): number of possible next tokens, and concentration of the Dirichlet
# distribution of their probabilities (1: uniform over all distributions).
BEAM_TOKENS = 32
BEAM_CONCENTRATION = 1.0


@dataclass
class Savings:
    """Sums of blocks and tokens over all looks at the pool.

    Unreferenced blocks are not counted. copies: blocks copied before a write. requests: prompt and
    output length of each.
    """

    looks: int = 0
    table_blocks: int = 0
    blocks: int = 0
    logical_tokens: int = 0
    tokens_saved: int = 0
    copies: int = 0
    requests: list[tuple[int, int]] = field(default_factory=list)

    def add(self, found: PoolAccounting) -> None:
        """Count one look at the pool."""
        self.looks += 1
        self.table_blocks += found.num_table_blocks
        self.blocks += found.num_referenced_blocks
        self.logical_tokens += found.logical_tokens
        self.tokens_saved += found.tokens_saved

    @property
    def lengths(self) -> Lengths:
        """Prompt lengths and output lengths of the requests."""
        prompt, output = np.array(self.requests).T
        return prompt, output

    @property
    def share(self) -> float:
        """Saved blocks over blocks without sharing."""
        return 1 - self.blocks / self.table_blocks

    @property
    def mean_tokens_saved(self) -> float:
        """Saved tokens, averaged over the looks."""
        return self.tokens_saved / self.looks

    @property
    def mean_blocks_saved(self) -> float:
        """Saved blocks, averaged over the looks."""
        return (self.table_blocks - self.blocks) / self.looks


@dataclass
class Family:
    """Sequences of equal length with a common prompt, and their block tables."""

    blocks: BlockPool
    length: int
    tables: list[list[int]] = field(default_factory=list)
    copies: int = 0

    @classmethod
    def start(cls, blocks: BlockPool, prompt_len: int, width: int) -> Family:
        """Allocate the prompt's blocks once, shared by all sequences, the last block included."""
        table = blocks.allocate(blocks.blocks_for(prompt_len))
        for _ in range(width - 1):
            blocks.share(table)
        return cls(blocks, prompt_len, [list(table) for _ in range(width)])

    def grow(self) -> None:
        """Append one token to each sequence. Shared blocks are copied before the write."""
        for table in self.tables:
            if self.length == len(table) * self.blocks.block_size:
                table += self.blocks.allocate(1)
            elif not self.blocks.is_writable(table[-1]):
                shared, table[-1:] = table[-1], self.blocks.allocate(1)
                self.blocks.release([shared])
                self.copies += 1
        self.length += 1

    def survive(self, parents: list[int]) -> None:
        """Continue sequences parents[0], parents[1], ...: some are forked, others end."""
        if parents == list(range(len(self.tables))):
            return
        counts = Counter(parents)
        for parent, count in counts.items():
            for _ in range(count - 1):
                self.blocks.share(self.tables[parent])
        for index, table in enumerate(self.tables):
            if index not in counts:
                self.blocks.release(table)
        self.tables = [list(self.tables[parent]) for parent in parents]

    def steps(self, lineage: Iterator[list[int]]) -> Iterator[None]:
        """Yield after each step: the one that stores the prompt, then one per further token."""
        yield
        for parents in lineage:
            self.survive(parents)
            self.grow()
            yield

    def account(self) -> PoolAccounting:
        """Return the current use of the pool."""
        return account(self.blocks, ((table, self.length) for table in self.tables))

    def end(self) -> None:
        """Release all blocks."""
        for table in self.tables:
            self.blocks.release(table)


Lineage = Callable[[np.random.Generator, int, int], Iterator[list[int]]]


def parallel(rng: np.random.Generator, width: int, steps: int) -> Iterator[list[int]]:
    """Yield parents of parallel samples, which never change."""
    for _ in range(steps):
        yield list(range(width))


def survivors(rng: np.random.Generator, width: int, steps: int, sure: float) -> Iterator[list[int]]:
    """Yield the parents of the best `width` candidates, by the rule of beam search.

    A beam's score is the sum of its tokens' log probabilities. Each beam proposes its `width`
    likeliest next tokens, and the best of all proposals survive. The probabilities are drawn from
    a Dirichlet distribution, independently for each beam. In text most tokens are nearly certain,
    and then no beam is replaced: `sure` is the share of such steps. It determines how far back the
    common ancestor of the beams is, and so how many blocks they share.
    """
    scores = np.full(width, -np.inf)
    scores[0] = 0.0  # all start from one prompt, so all first tokens come from beam 0
    is_open = rng.random(steps) >= sure
    is_open[:1] = True
    for each in is_open:
        if not each:
            yield list(range(width))
            continue
        chances = rng.dirichlet(np.full(BEAM_TOKENS, BEAM_CONCENTRATION), width)
        best = np.log(np.sort(chances, axis=1)[:, ::-1][:, :width])
        candidates = (scores[:, None] + best).ravel()
        chosen = np.argsort(-candidates, kind="stable")[:width]
        scores = candidates[chosen] - candidates[chosen[0]]
        yield (chosen // width).tolist()


def measure(
    mix: RequestMix, width: int, block_size: int, num_steps: int, seed: int, lineage: Lineage
) -> Savings:
    """Run requests of the mix for `num_steps` steps, each as a family of `width` sequences.

    Every step of every request has equal weight, as in an engine under steady load. All sequences
    of a request have its output length.
    """
    blocks = BlockPool(width * (MAX_SEQ_LEN // block_size + 1), block_size)
    rng, requests, savings = np.random.default_rng(seed), stream(mix, seed), Savings()
    clock = 0
    while clock < num_steps:
        prompt_len, output_len = next(requests)
        family = Family.start(blocks, prompt_len, width)
        for _ in family.steps(lineage(rng, width, output_len - 1)):
            clock += 1
            if clock % LOOK_EVERY == 0:
                savings.add(family.account())
        savings.copies += family.copies
        savings.requests.append((prompt_len, output_len))
        family.end()
    assert blocks.num_free == blocks.num_blocks, "a block was not released"
    return savings


def closed_form_parallel(lengths: Lengths, width: int, block_size: int) -> float:
    """Return the share of blocks that `width` samples save, for requests of these lengths.

    All samples but one save the full blocks of the prompt. Its partly filled block is shared in the
    first step only, which is neglected.
    """
    prompt, output = lengths
    shared = (output * (prompt // block_size)).sum()
    of_one = (output * (prompt + (output - 1) / 2 + (block_size - 1) / 2)).sum() / block_size
    return float((width - 1) / width * shared / of_one)


def common_prompt(
    mix: RequestMix, num_requests: int, common_len: int, block_size: int, seed: int
) -> tuple[Savings, Savings]:
    """Measure requests that begin with the same `common_len` tokens, found by the prefix trie.

    Each continues with its own prompt from the mix. Returns the savings when all prompts are
    stored, and when all outputs are complete.
    """
    rng, requests = np.random.default_rng(seed), stream(mix, seed)
    blocks = BlockPool(num_requests * -(-(common_len + MAX_SEQ_LEN) // block_size), block_size)
    common = list(range(common_len))
    held: list[tuple[list[int], int]] = []
    full: list[tuple[list[int], int]] = []
    for _ in range(num_requests):
        prompt_len, output_len = next(requests)
        tokens = common + rng.integers(common_len, 2**31, prompt_len).tolist()
        held.append((admit(blocks, tokens), len(tokens)))
        full.append((held[-1][0], len(tokens) + output_len - 1))
    prompts, outputs = Savings(), Savings()
    prompts.add(account(blocks, held))
    for table, length in full:
        table += blocks.allocate(blocks.blocks_for(length) - len(table))
    outputs.add(account(blocks, full))
    blocks.check(table for table, _ in full)
    return prompts, outputs


def admit(blocks: BlockPool, tokens: list[int]) -> list[int]:
    """Return the block table of a prompt, with cached blocks; enter new blocks into the trie."""
    size = blocks.block_size
    nodes = blocks.match(None, tokens[:-1])  # the last token is always computed
    table = [node.block for node in nodes if node.block is not None]
    blocks.share(table)
    table += blocks.allocate(blocks.blocks_for(len(tokens)) - len(table))
    parent = nodes[-1] if nodes else None
    for index in range(len(nodes), len(tokens) // size):
        content = tokens[index * size : (index + 1) * size]
        parent = blocks.enter(None, parent, content, table[index])
    return table
