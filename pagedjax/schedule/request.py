"""One request's host state, and the outputs made from it."""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from pagedjax.outputs import FinishReason
from pagedjax.sampling_params import SamplingParams
from pagedjax.schedule.token_edits import TokenEdits

# Sampling programs, from the smallest; each can do all that the ones before it can.
Variant = Literal["greedy", "random", "logprobs", "full"]


class Status(enum.Enum):
    """State of a request. Only a RUNNING request owns a slot and blocks.

    HELD: not queued; it waits for its sibling's prompt or, in beam search, for its next token.
    """

    HELD = "held"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Candidates(NamedTuple):
    """A token's log probability and rank, and the best tokens at its position, best first."""

    token: int
    logprob: float
    rank: int
    best: tuple[tuple[int, float], ...]


@dataclass(eq=False)
class Request:
    """Host state of one request: ints and lists only. Only the scheduler changes it.

    arrival, seed: set at admission; see `Intake.admit`.
    tokens: ids of the prompt and of the output that the host has read so far.
    num_prompt: how many of `tokens` are the prompt.
    num_computed: tokens whose keys and values are in the pool once every dispatched step is done.
    num_pending: tokens sampled by dispatched steps that the host has not read yet (0 or 1).
    max_len: prompt + output tokens at which the request ends with "length".
    score: True for a request that only scores its tokens and generates none.
    edits: changes to its logits, and forbidden ids. token_logprobs: of the output read so far.
    prompt_logprobs: entry i is of token i + 1; only the known ones are in the list.
    num_prompt_logprobs: how many the user wants.
    num_candidates: above 0, the request draws nothing: once all its tokens are computed, its
        `candidates` are the most likely next tokens with their log probabilities.
    sample_index: i of the n samples of one prompt; siblings: the others, until they start.
    namespace: the request shares prefix cache entries only within its namespace.
    nodes: the request's full blocks in the prefix trie, entered under weights `cache_version`.
    num_cached_tokens: prompt tokens found in the cache at its first start; None before that.
    """

    id: str
    tokens: list[int]
    num_prompt: int
    params: SamplingParams
    max_len: int
    stop_ids: frozenset[int]
    eos_ids: frozenset[int]
    arrival: int = -1
    seed: int = 0
    score: bool = False
    num_candidates: int = 0
    candidates: list[tuple[int, float]] | None = None
    edits: TokenEdits = TokenEdits()
    token_logprobs: list[Candidates] = field(default_factory=list)
    prompt_logprobs: list[Candidates] = field(default_factory=list)
    num_prompt_logprobs: int = 0
    num_computed: int = 0
    num_pending: int = 0
    block_ids: list[int] = field(default_factory=list)
    slot: int | None = None
    slot_has_token: bool = False
    status: Status = Status.WAITING
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    sample_index: int = 0
    siblings: list[Request] = field(default_factory=list)
    namespace: Hashable = None
    nodes: list[Any] = field(default_factory=list)
    cache_version: int = 0
    num_cached_tokens: int | None = None

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key: lower priority value first, then earlier arrival, then lower sample index."""
        return (self.params.priority, self.arrival, self.sample_index)

    def copy(self, **changes: Any) -> Request:
        """Return a copy with the same tokens, not started: no slot, no blocks."""
        kept = ("id", "arrival", "num_prompt", "params", "seed", "max_len", "stop_ids", "eos_ids",
                "namespace", "edits", "num_prompt_logprobs")  # fmt: skip
        values = {name: getattr(self, name) for name in kept}
        lists = ("tokens", "token_logprobs", "prompt_logprobs")
        values |= {name: list(getattr(self, name)) for name in lists}
        return Request(**{**values, **changes})

    @cached_property
    def is_adjusted(self) -> bool:
        """Whether its logits are changed before temperature and filters."""
        params = self.params
        penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        return penalties != (1, 0, 0) or self.edits.exist

    @cached_property
    def variant(self) -> Variant:
        """The smallest sampling program that supports the request's options."""
        if self.is_adjusted:
            return "full"
        if self.params.logprobs is not None:
            return "logprobs"
        return "random" if self.params.temperature else "greedy"

    @property
    def scores_prompt(self) -> bool:
        """Whether logits at its prompt's positions are needed."""
        return self.score or self.lists_prompt

    @property
    def lists_prompt(self) -> bool:
        """Whether some of the requested `prompt_logprobs` are not known yet."""
        return len(self.prompt_logprobs) < self.num_prompt_logprobs

    @property
    def num_scored(self) -> int:
        """Number of leading prompt positions whose logits are not needed any more."""
        return len(self.prompt_logprobs) if self.lists_prompt else self.num_prompt

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output, including those that the host has not read yet."""
        return len(self.tokens) + self.num_pending

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose keys and values no dispatched step has written."""
        return self.num_tokens - self.num_computed

    @property
    def num_computable(self) -> int:
        """Tokens that may be computed now; nothing needs what follows a scored text."""
        return self.num_uncomputed - int(self.score)

    @property
    def is_in_prefill(self) -> bool:
        """Whether its next row computes known tokens, not the token in its slot."""
        return not self.slot_has_token and self.num_computable > 0

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compute: it has ended, or waits for its next token."""
        return self.is_finished or self.candidates is not None

    @property
    def why_it_ends(self) -> tuple[FinishReason, int | None] | None:
        """Finish reason and stop id if the request ends with its last token, else None."""
        token = self.tokens[-1]
        if token in self.eos_ids:
            return "stop", None
        if token in self.stop_ids:
            return "stop", token
        return ("length", None) if len(self.tokens) >= self.max_len else None

    @property
    def ended_by_id(self) -> bool:
        """Whether an end-of-sequence id or a stop id ended it; that id is its last token."""
        if self.finish_reason != "stop" or not self.num_output:
            return False
        return self.tokens[-1] in self.eos_ids or self.tokens[-1] in self.stop_ids

    @property
    def awaits_token(self) -> bool:
        """Whether the next row depends on a token in flight: on whether it is the last, or on
        its value, which decides which ids are allowed."""
        if not self.num_pending:
            return False
        return self.num_tokens >= self.max_len or self.edits.need_every_token

    @property
    def num_output(self) -> int:
        """Number of ids generated and read so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def output_ids(self) -> list[int]:
        """The generated ids read so far."""
        return self.tokens[self.num_prompt :]

    @property
    def is_finished(self) -> bool:
        """True once the request has a finish reason."""
        return self.status is Status.FINISHED


def num_candidates(beam_width: int, end_ids: frozenset[int]) -> int:
    """Next tokens of each beam that a step of beam search must rank.

    Enough to fill `beam_width` beams after every end id was drawn; further tokens of one beam
    never matter.
    """
    return max(2, 1 + len(end_ids)) * beam_width
