"""SamplingParams: how one request's tokens are chosen and when the request ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from pagedjax.checks.values import check_seed, is_finite, is_int, one_of, plain_list, plain_number

OutputKind = Literal["cumulative", "delta", "final_only"]
MAX_SAMPLES = 16384  # all samples are created when the request is


@dataclass(frozen=True)
class SamplingParams:
    """How one request's tokens are chosen and when it ends. Validated at construction.

    temperature: 0 is the exact argmax (lowest id on ties); otherwise logits are divided by it.
    min_p, top_k, top_p: filters, applied in this order after the temperature. `top_k` of 0, -1
        or at least V is off. Ties in top-k: lower ids first. top-p keeps the smallest set of
        tokens whose mass reaches `top_p`, at least one.
    n: number of samples, at most 16384, which share the prompt's blocks; `outputs` has one entry
        per sample.
    seed: the random number of output position t of sample i is a function of (seed, i, t) alone.
        None: derived from the engine's seed and the request's arrival number.
    max_tokens: most output tokens; None: up to the engine's max_model_len.
    stop_token_ids: ids that end the output. The id stays in `token_ids`; its text, like that of an
        end-of-sequence id, is left out of `text` unless `include_stop_str_in_output`.
    min_tokens: neither an end id nor a stop string ends the output within its first `min_tokens`
        tokens; a stop string that begins in their text may end in later text.
    stop: one or several strings; the first to appear in `text` ends the output and is its
        stop_reason. The text is cut before it, or after it with `include_stop_str_in_output`; the
        token ids keep the token that completed it. If one token completes several, the one that
        begins earliest counts; ties go to the one listed first. Text that may begin a stop string
        is held back until that is decided.
    repetition_penalty: for ids in prompt or output, once per id: positive logits are divided by it,
        negative ones multiplied (arXiv 1909.05858). presence_penalty, frequency_penalty: subtracted
        from the logits of ids in the output, once, or once per occurrence.
    logit_bias: added to the logits of these ids. allowed_token_ids: no other id is drawn.
    bad_words: texts that must not appear in the output; their last token is forbidden wherever
        the output ends with the tokens before it. If all allowed ids are forbidden by bad words or
        `min_tokens`, one of them is drawn nevertheless.
    logprobs: report each output token's log probability and rank, and those of the k best ids.
        prompt_logprobs: the same for the prompt's tokens; the first has none.
    extra: arrays for the engine's `logits_processor`, by name.
    ignore_eos: end-of-sequence ids, the model's and the tokenizer's, do not end the output.
    output_kind: what `step` and `stream` return. "cumulative": all output so far at every step;
        "delta": only what is new, at a cost that does not grow with the output; "final_only":
        one output, when the request ends. `generate` always returns whole outputs.
    skip_special_tokens: leave special tokens out of `text`. detokenize: False: `text` is empty.
    cache_salt: only requests with the same salt share prefix cache entries.
    priority: lower values run first; ties by arrival.
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
    max_tokens: int | None = 16
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
    output_kind: OutputKind = "cumulative"
    priority: int = 0
    extra: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self._plain()
        self._check_ints()
        self._check_floats()
        self._check_flags()
        self._check_stop()
        self._check_token_ids()
        self._check_logprobs()

    def _plain(self) -> None:
        """Convert numpy numbers and arrays to Python's, so that later code meets only those."""
        for each in fields(self):
            if each.name in ("stop_token_ids", "allowed_token_ids"):
                value = plain_list(getattr(self, each.name))
            elif each.name == "logit_bias" and isinstance(self.logit_bias, Mapping):
                pairs = self.logit_bias.items()
                value = {plain_number(token): plain_number(bias) for token, bias in pairs}
            else:
                value = plain_number(getattr(self, each.name))
            object.__setattr__(self, each.name, value)

    def _check_ints(self) -> None:
        for name, least in (("n", 1), ("top_k", -1), ("min_tokens", 0)):
            if not is_int(getattr(self, name)) or getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)!r} must be an int >= {least}")
        if self.n > MAX_SAMPLES:
            raise ValueError(
                f"n={self.n} exceeds {MAX_SAMPLES}, the most samples of a request; "
                "give the prompt to several requests"
            )
        self._check_max_tokens()
        if not is_int(self.priority):
            raise ValueError(f"priority={self.priority!r} must be an int")
        if self.seed is not None:
            check_seed(self.seed)
        if not isinstance(self.cache_salt, str | None):
            raise ValueError(f"cache_salt={self.cache_salt!r} must be a string or None")

    def _check_max_tokens(self) -> None:
        if self.max_tokens is None:
            return
        if not is_int(self.max_tokens) or self.max_tokens < 1:
            raise ValueError(
                f"max_tokens={self.max_tokens!r} must be an int >= 1, or None for all that fits; "
                "to score without generating use compute_logprobs"
            )
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens={self.min_tokens} exceeds max_tokens={self.max_tokens}")

    def _check_token_ids(self) -> None:
        for name, least in (("stop_token_ids", 0), ("allowed_token_ids", 1)):
            ids = getattr(self, name)
            if ids is None:
                continue
            listed = isinstance(ids, Sequence) and not isinstance(ids, str) and len(ids) >= least
            if not listed or not all(is_int(token) and token >= 0 for token in ids):
                raise ValueError(f"{name}={ids!r} must be a list of {least} or more ids >= 0")
        bias = {} if self.logit_bias is None else self.logit_bias
        if not isinstance(bias, Mapping) or not all(
            is_int(token) and token >= 0 and is_finite(value) for token, value in bias.items()
        ):
            raise ValueError(f"logit_bias={bias!r} must map token ids >= 0 to finite numbers")
        words = () if self.bad_words is None else self.bad_words
        listed = isinstance(words, Sequence) and not isinstance(words, str)
        if not listed or not all(isinstance(word, str) and word.strip() for word in words):
            raise ValueError(f"bad_words={words!r} must be a list of strings, none blank")

    def _check_logprobs(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None and (not is_int(value) or value < 0):
                raise ValueError(f"{name}={value!r} must be an int >= 0 or None")
        if self.extra is not None and not isinstance(self.extra, Mapping):
            raise ValueError(f"extra={self.extra!r} must map names to arrays, or be None")

    def _check_flags(self) -> None:
        for name in (
            "ignore_eos", "skip_special_tokens", "detokenize", "include_stop_str_in_output",
        ):  # fmt: skip
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r} must be True or False")
        one_of("output_kind", self.output_kind, get_args(OutputKind))

    def _check_stop(self) -> None:
        stop = () if self.stop is None else self.stop
        strings = stop if isinstance(stop, Sequence) and not isinstance(stop, str) else (stop,)
        if not all(isinstance(each, str) and each for each in strings):
            raise ValueError(f"stop={stop!r} must be a string or a list of strings, none empty")
        if strings and not self.detokenize:
            raise ValueError(f"stop={stop!r} is looked for in the text; it needs detokenize=True")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple, empty for None."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def _check_floats(self) -> None:
        for name, wanted, holds in (
            ("temperature", ">= 0", lambda x: x >= 0),
            ("top_p", "in (0, 1]", lambda x: 0 < x <= 1),
            ("min_p", "in [0, 1]", lambda x: 0 <= x <= 1),
            ("repetition_penalty", "> 0", lambda x: x > 0),
            ("presence_penalty", "", lambda x: True),
            ("frequency_penalty", "", lambda x: True),
        ):
            value = getattr(self, name)
            if not is_finite(value) or not holds(value):
                raise ValueError(f"{name}={value!r} must be a finite number {wanted}".rstrip())
