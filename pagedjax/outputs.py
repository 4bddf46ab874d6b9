"""Results of an engine: request outputs, statistics, and the report of `warmup`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

SHOWN = 40  # characters of a text in a repr
FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class Logprob:
    """Log probability of one token, its rank (1 is the most likely) and its text.

    decoded_token: the text the token adds. A token that ends within a character has the empty
    text and the one that completes the character has all of it, so the texts of the output's
    tokens join to its text (special tokens included). None without a tokenizer.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(frozen=True)
class CompletionOutput:
    """One sample of a request; `delta_*` is what is new since the last snapshot.

    With `output_kind="delta"`, `token_ids`, `text` and `logprobs` too have only what is new.

    token_ids: generated ids, including the one that ended the output. text: their text, as far as
    it is certain: without a stop string or stop token, and without text that may become a stop
    string. finish_reason: None until "stop", "length", "abort" or "error". stop_reason: the stop
    string or id, or what went wrong. logprobs: one dict per output token, with the token itself
    and the best ones beside it. cumulative_logprob: sum over all output tokens so far. Both are
    None unless `logprobs` was requested.
    """

    index: int
    token_ids: list[int]
    text: str
    delta_token_ids: list[int]
    delta_text: str
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= SHOWN else self.text[:SHOWN] + "..."
        return (
            f"CompletionOutput({self.index}, {len(self.token_ids)} tokens, {text!r}, "
            f"{self.finish_reason!r})"
        )


@dataclass(frozen=True)
class RequestOutput:
    """The output of one request so far.

    outputs: one per sample. prompt_logprobs: one dict per prompt token, None for the first token
    and for those not computed yet; None unless requested. num_cached_tokens: prompt tokens found
    in the prefix cache.
    """

    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0

    def __repr__(self) -> str:
        return (
            f"RequestOutput({self.request_id!r}, prompt of {len(self.prompt_token_ids)} tokens, "
            f"{self.outputs!r}, finished={self.finished})"
        )


@dataclass(frozen=True)
class EngineStats:
    """A snapshot. Always `num_free_blocks + num_cached_blocks + num_referenced_blocks ==
    num_blocks`; cached blocks hold reusable content and are in no block table.

    kv_utilization: share of the referenced blocks' token slots that hold keys.
    mean_kv_utilization: its mean over all steps so far.
    computed_tokens: tokens of all steps without padding; padded_tokens: with padding.
    elapsed_s: seconds spent in `step`, the sum of wait_s (waiting for the device) and host_s
    (host work). exposed_s: the part of host_s in which the device may have been idle, because no
    step was in flight, or it had ended before the next was dispatched.
    """

    num_waiting: int
    num_running: int
    num_blocks: int
    num_free_blocks: int
    num_cached_blocks: int
    num_referenced_blocks: int
    kv_utilization: float
    mean_kv_utilization: float
    prefix_hit_tokens: int
    prefix_query_tokens: int
    num_preemptions: int
    num_compilations: int
    prompt_tokens: int
    generated_tokens: int
    steps: int
    computed_tokens: int
    padded_tokens: int
    elapsed_s: float
    host_s: float
    wait_s: float
    exposed_s: float

    def as_dict(self) -> dict[str, int | float]:
        """All values by name, including the derived ones."""
        derived = ("device_s", "overlap", "padding_waste")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}

    @property
    def device_s(self) -> float:
        """Lower bound of the seconds of `step` in which the device was busy."""
        return self.elapsed_s - self.exposed_s

    @property
    def overlap(self) -> float:
        """Share of host work that overlapped with device work; 0 before any step."""
        return 1 - self.exposed_s / self.host_s if self.host_s else 0.0

    @property
    def padding_waste(self) -> float:
        """Share of the computed tokens that was padding; 0 before any step."""
        return 1 - self.computed_tokens / self.padded_tokens if self.padded_tokens else 0.0


@dataclass(frozen=True)
class CompileReport:
    """The programs that `warmup` compiled: names with shapes, and compilation seconds of each."""

    shapes: tuple[str, ...]
    seconds: tuple[float, ...]
    total_seconds: float
