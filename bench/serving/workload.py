"""Deterministic random requests for the serving benchmarks."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

SEED = 0
SHORTEST, LONGEST = 16, 256  # tokens of a prompt, and of an output
MAX_MODEL_LEN = 2 * LONGEST
BLOCK_SIZE = 16  # tokens of a block of the KV pool
# Excludes the special tokens: most vocabularies begin with them, and SmolLM2's 49,152 ids also end
# with added tokens.
FIRST_ID, END_ID = 3, 49_000


@dataclass(frozen=True)
class Workload:
    """Prompts in order of arrival, and the output length of each."""

    prompts: tuple[list[int], ...]
    output_lens: tuple[int, ...]

    @property
    def num_prompt_tokens(self) -> int:
        """Number of tokens of all prompts."""
        return sum(map(len, self.prompts))

    @property
    def num_output_tokens(self) -> int:
        """Number of tokens of all outputs."""
        return sum(self.output_lens)

    def batches(self, size: int) -> list[Workload]:
        """Split the requests in order of arrival into groups of `size`; the last may be smaller."""
        return [
            Workload(self.prompts[start : start + size], self.output_lens[start : start + size])
            for start in range(0, len(self.prompts), size)
        ]

    def first(self, output_len: int) -> Workload:
        """Return the first prompt alone, with `output_len` output tokens."""
        return Workload(self.prompts[:1], (output_len,))

    def task(self) -> dict[str, Any]:
        """Return the JSON value that the peer scripts read."""
        return {"prompts": self.prompts, "output_lens": self.output_lens}


def make_workload(
    num_requests: int = 64, first_id: int = FIRST_ID, end_id: int = END_ID
) -> Workload:
    """Draw prompts of ids in [first_id, end_id), then the output lengths."""
    if num_requests < 1:
        raise ValueError(f"num_requests is {num_requests}, but must be at least 1")
    if end_id <= first_id:
        raise ValueError(f"no ids to draw from: first_id is {first_id} and end_id {end_id}")
    rng = random.Random(SEED)
    prompts = tuple(
        [rng.randrange(first_id, end_id) for _ in range(rng.randint(SHORTEST, LONGEST))]
        for _ in range(num_requests)
    )
    return Workload(prompts, tuple(rng.randint(SHORTEST, LONGEST) for _ in range(num_requests)))


def make_even_workload(
    num_requests: int, prompt_len: int, output_len: int, end_id: int = END_ID
) -> Workload:
    """Return requests of one size with ids in [FIRST_ID, end_id)."""
    rng = random.Random(SEED)
    prompts = tuple(
        [rng.randrange(FIRST_ID, end_id) for _ in range(prompt_len)] for _ in range(num_requests)
    )
    return Workload(prompts, (output_len,) * num_requests)
