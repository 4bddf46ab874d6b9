"""What is asked and what comes back: sampling params, one request's host state, its outputs."""

from __future__ import annotations

import enum
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from pagedjax.config import check_seed, is_int

FinishReason = Literal["stop", "length", "abort", "error"]

# Fields that a later release brings: anything but the default is refused by name.
_LATER = (
    "repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens", "stop",
    "include_stop_str_in_output", "logit_bias", "allowed_token_ids", "bad_words", "logprobs",
    "prompt_logprobs",
)  # fmt: skip


@dataclass(frozen=True)
class SamplingParams:
    """How one request's tokens are chosen and when it stops; checked when made.

    temperature: 0 is the exact argmax (lowest id on ties); otherwise logits are divided by it.
    min_p, top_k, top_p: filters, applied in this order after the temperature. `top_k` of 0, -1
        or at least V is off. Ties in top-k: lower ids first. top-p keeps the smallest set of
        tokens whose mass reaches `top_p`, at least one.
    n: samples of the prompt, which share its keys; `outputs` has one entry for each.
    seed: the random number of output position t of sample i is a function of (seed, i, t) alone.
        None: derived from the engine's seed and the request's arrival number.
    max_tokens: output tokens at most. stop_token_ids: end the output, and are part of it.
    ignore_eos: the model's own end-of-sequence ids do not stop the output.
    skip_special_tokens, detokenize: how `text` is made; False for `detokenize` leaves it empty.
    cache_salt: only requests with the same salt share prefix cache entries.
    priority: lower runs first; first come, first served among equals.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    detokenize: bool = True
    cache_salt: str | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        self._check_ints()
        self._check_floats()
        self._check_flags()
        for each in fields(self):
            if each.name in _LATER and getattr(self, each.name) != each.default:
                raise NotImplementedError(
                    f"SamplingParams.{each.name}={getattr(self, each.name)!r} is not supported "
                    f"yet; supported: {each.default!r}"
                )

    def _check_ints(self) -> None:
        for name, least in (("n", 1), ("top_k", -1), ("min_tokens", 0)):
            if not is_int(getattr(self, name)) or getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)!r} must be an int >= {least}")
        if not is_int(self.max_tokens) or self.max_tokens < 1:
            raise ValueError(
                f"max_tokens={self.max_tokens!r} must be an int >= 1; "
                "to score without generating use compute_logprobs"
            )
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens={self.min_tokens} exceeds max_tokens={self.max_tokens}")
        if not is_int(self.priority):
            raise ValueError(f"priority={self.priority!r} must be an int")
        if self.seed is not None:
            check_seed(self.seed)
        if not isinstance(self.cache_salt, str | None):
            raise ValueError(f"cache_salt={self.cache_salt!r} must be a string or None")
        ids = () if self.stop_token_ids is None else self.stop_token_ids
        listed = isinstance(ids, Sequence) and not isinstance(ids, str)
        if not listed or not all(is_int(token) and token >= 0 for token in ids):
            raise ValueError(
                f"stop_token_ids={self.stop_token_ids!r} must be a list of token ids >= 0"
            )

    def _check_flags(self) -> None:
        for name in (
            "ignore_eos", "skip_special_tokens", "detokenize", "include_stop_str_in_output",
        ):  # fmt: skip
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r} must be True or False")

    def _check_floats(self) -> None:
        for name, wanted, holds in (
            ("temperature", ">= 0", lambda x: x >= 0),
            ("top_p", "in (0, 1]", lambda x: 0 < x <= 1),
            ("min_p", "in [0, 1]", lambda x: 0 <= x <= 1),
            ("repetition_penalty", "> 0", lambda x: x > 0),
            ("presence_penalty", "finite", lambda x: True),
            ("frequency_penalty", "finite", lambda x: True),
        ):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or not holds(value):
                raise ValueError(f"{name}={value!r} must be a finite number {wanted}".rstrip())


class Status(enum.Enum):
    """Where a request stands. Only RUNNING owns a slot and blocks.

    HELD: not queued, since it waits for its sibling's prompt or for its next token.
    """

    HELD = "held"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Request:
    """Host state of one request: ints and lists only. The scheduler is the one who changes it.

    tokens: ids of the prompt and of the output, as far as the host has read them.
    num_prompt: how many of `tokens` are the prompt.
    num_computed: tokens whose keys and values are in the pool once every dispatched step is done.
    num_pending: tokens sampled by dispatched steps that the host has not read yet (0 or 1).
    max_len: prompt + output tokens at which the request ends with "length".
    score: True for a request that only scores its tokens and generates none.
    num_candidates: above 0, the request draws nothing: once all its tokens are computed, its
        `candidates` are the most likely next tokens with their log probabilities.
    sample_index: i of the n samples of one prompt; siblings: the others, until they start.
    namespace: prefix cache entries are shared within it alone.
    nodes: the request's full blocks in the prefix trie, entered under weights `cache_version`.
    num_cached_tokens: prompt tokens found in the cache when it first started; None before.
    """

    id: str
    arrival: int
    tokens: list[int]
    num_prompt: int
    params: SamplingParams
    seed: int
    max_len: int
    stop_ids: frozenset[int]
    eos_ids: frozenset[int]
    score: bool = False
    num_candidates: int = 0
    candidates: list[tuple[int, float]] | None = None
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
        """Who goes first: lower priority, then earlier arrival, then lower sample index."""
        return (self.params.priority, self.arrival, self.sample_index)

    def copy(self, **changes: Any) -> Request:
        """The same request with the same tokens, not started: no slot, no blocks."""
        kept = ("id", "arrival", "num_prompt", "params", "seed", "max_len", "stop_ids", "eos_ids",
                "namespace")  # fmt: skip
        values = {name: getattr(self, name) for name in kept}
        return Request(**{**values, "tokens": list(self.tokens), **changes})

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output, those included that the host has not read yet."""
        return len(self.tokens) + self.num_pending

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose keys and values no dispatched step writes yet."""
        return self.num_tokens - self.num_computed

    @property
    def output_ids(self) -> list[int]:
        """The generated ids read so far."""
        return self.tokens[self.num_prompt :]

    @property
    def is_finished(self) -> bool:
        """True once the request has a finish reason."""
        return self.status is Status.FINISHED


@dataclass(frozen=True)
class Logprob:
    """Log probability of one token, its rank (1 is the most likely) and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(frozen=True)
class CompletionOutput:
    """One sample of a request, cumulative; `delta_*` is what is new since the last snapshot."""

    index: int
    token_ids: list[int]
    text: str
    delta_token_ids: list[int]
    delta_text: str
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None


@dataclass(frozen=True)
class RequestOutput:
    """A snapshot of one request. `num_cached_tokens`: prompt tokens found in the prefix cache."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0
