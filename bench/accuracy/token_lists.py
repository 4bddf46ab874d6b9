"""Token lists that `bench.scoring` scores, drawn from fixed seeds."""

from __future__ import annotations

import random

from bench.serving.workload import FIRST_ID, SEED

GROUPS, COMPLETIONS = 8, 8  # number of shared prompts, and completions of each
SHARED_LEN, OWN_LEN = 192, 64  # tokens of a shared prompt, and of a completion
TokenLists = list[list[int]]


def extended(lists: TokenLists, end_id: int) -> TokenLists:
    """Extend each list to the length of the longest with random ids in [FIRST_ID, end_id)."""
    rng, longest = random.Random(SEED + 1), max(map(len, lists))
    return [
        each + [rng.randrange(FIRST_ID, end_id) for _ in range(longest - len(each))]
        for each in lists
    ]


def branching(end_id: int) -> TokenLists:
    """Draw `GROUPS` prompts and return `COMPLETIONS` lists with each, grouped by prompt."""
    rng = random.Random(SEED + 2)

    def drawn(count: int) -> list[int]:
        return [rng.randrange(FIRST_ID, end_id) for _ in range(count)]

    prompts = [drawn(SHARED_LEN) for _ in range(GROUPS)]
    return [prompt + drawn(OWN_LEN) for prompt in prompts for _ in range(COMPLETIONS)]
