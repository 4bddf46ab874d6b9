"""From a prompt to a checked Request: every invalid request is refused here."""

from __future__ import annotations

import hashlib
import itertools
import operator
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from pagedjax.architecture.model_config import ModelConfig
from pagedjax.checks.values import is_int, plain_number
from pagedjax.intake.prompts import Prompt as Prompt
from pagedjax.intake.prompts import parse_prompt
from pagedjax.sampling_params import SamplingParams
from pagedjax.schedule.blocks import BlockPool
from pagedjax.schedule.request import Request, Status, num_candidates
from pagedjax.schedule.token_edits import TokenEdits
from pagedjax.text.encode import encode, encode_word


@dataclass(frozen=True)
class Intake:
    """Makes the requests of one engine, within its limits, and numbers them as they arrive."""

    model: ModelConfig
    max_model_len: int
    blocks: BlockPool
    seed: int
    tokenizer: Any = None
    max_logprobs: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)
    _arrivals: Iterator[int] = field(default_factory=itertools.count, repr=False, compare=False)

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """End-of-sequence ids: the model's, and the tokenizer's if it names another."""
        ids = set(self.model.eos_token_ids)
        named = getattr(self.tokenizer, "eos_token_id", None)
        if isinstance(named, int) and 0 <= named < self.model.vocab_size:
            ids.add(named)
        return frozenset(ids)

    def request(
        self, request_id: str, prompt: Prompt, params: SamplingParams | None = None
    ) -> Request:
        """Check a prompt and its params; return a Request to be admitted before it is queued.

        Raises ValueError, with the value and the remedy, for a request that can never be served.
        """
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise ValueError(f"sampling_params={params!r} must be a SamplingParams")
        content, salt = parse_prompt(prompt)
        ids = self._token_ids(content)
        if len(ids) >= self.max_model_len:
            raise ValueError(
                f"the prompt has {len(ids)} tokens, which leaves no room for output in "
                f"max_model_len={self.max_model_len}; shorten it or raise max_model_len"
            )
        self._check_fits(len(ids))
        if params.stop_strings and self.tokenizer is None:
            raise ValueError(f"stop={params.stop!r} is looked for in text; there is no tokenizer")
        stop_ids = frozenset(params.stop_token_ids or ())
        self._check_ids(sorted(stop_ids), "stop_token_ids")
        self._check_logprobs(params)
        self._check_extra(params)
        eos_ids = frozenset() if params.ignore_eos else self.eos_ids
        first = Request(
            id=request_id,
            tokens=ids,
            num_prompt=len(ids),
            params=params,
            max_len=self._max_len(len(ids), params.max_tokens),
            stop_ids=stop_ids,
            eos_ids=eos_ids,
            edits=self._edits(params, stop_ids | eos_ids),
            num_prompt_logprobs=0 if params.prompt_logprobs is None else len(ids) - 1,
            namespace=params.cache_salt if salt is None else salt,
        )
        first.siblings = [
            first.copy(sample_index=i, status=Status.HELD, num_prompt_logprobs=0)
            for i in range(1, params.n)
        ]
        return first

    def _max_len(self, num_prompt: int, max_tokens: int | None) -> int:
        """Largest length of a request: what the model, the pool and `max_tokens` allow."""
        # One request that fills the whole pool still yields one more token, which is not stored.
        most = min(self.max_model_len, self.blocks.num_blocks * self.blocks.block_size + 1)
        return most if max_tokens is None else min(num_prompt + max_tokens, most)

    def _edits(self, params: SamplingParams, end_ids: frozenset[int]) -> TokenEdits:
        """The request's biases and forbidden ids, checked against the vocabulary."""
        bias = dict(params.logit_bias or {})
        self._check_ids(sorted(bias), "logit_bias")
        allowed = None if params.allowed_token_ids is None else frozenset(params.allowed_token_ids)
        self._check_ids(sorted(allowed or ()), "allowed_token_ids")
        if allowed and params.min_tokens and allowed <= end_ids:
            raise ValueError(
                f"allowed_token_ids={sorted(allowed)} all end the output, which min_tokens="
                f"{params.min_tokens} forbids at first"
            )
        return TokenEdits(bias, allowed, self._bad_words(params), end_ids, params.min_tokens)

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """Token ids of each word, at the beginning of a text and after a space."""
        if not params.bad_words:
            return ()
        if self.tokenizer is None:
            raise ValueError(f"bad_words={params.bad_words!r} are text; there is no tokenizer")
        spelled = (encode_word(self.tokenizer, word) for word in params.bad_words)
        return tuple(dict.fromkeys(ids for word in spelled for ids in word))

    def _check_logprobs(self, params: SamplingParams) -> None:
        most = min(self.max_logprobs, self.model.vocab_size)
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(params, name)
            if value is not None and value > most:
                raise ValueError(
                    f"{name}={value} exceeds the {most} that the engine reports; raise its "
                    "max_logprobs"
                )

    def _check_extra(self, params: SamplingParams) -> None:
        """Check names, shapes and dtypes of user arrays against the engine's defaults."""
        for name, value in (params.extra or {}).items():
            if name not in self.extra:
                raise ValueError(
                    f"extra[{name!r}] is unknown; the engine's extra has {sorted(self.extra)}"
                )
            default, given = np.asarray(self.extra[name]), np.asarray(value)
            if (given.shape, given.dtype) != (default.shape, default.dtype):
                raise ValueError(
                    f"extra[{name!r}] is {given.dtype}{list(given.shape)}; the engine's default "
                    f"is {default.dtype}{list(default.shape)}"
                )

    def next_arrival(self) -> int:
        """A number that no earlier request has."""
        return next(self._arrivals)

    def admit(self, request: Request, arrival: int | None = None) -> Request:
        """Give a checked request its place in the order of arrival, and its seed.

        arrival: None takes the next number. This is not part of the checks, because only a request
        that is served may take a number and so change the fresh seeds of later ones.
        """
        arrival = self.next_arrival() if arrival is None else arrival
        seed = request.params.seed
        for each in (request, *request.siblings):
            each.arrival = arrival
            each.seed = self.fresh_seed(arrival) if seed is None else seed
        return request

    def num_candidates(self, beam_width: int) -> int:
        """Tokens per beam that a step of beam search ranks; ValueError for an unusable width."""
        beam_width = plain_number(beam_width)
        if not is_int(beam_width) or beam_width < 1:
            raise ValueError(f"beam_width={beam_width!r} must be an int >= 1")
        count, vocab_size = num_candidates(beam_width, self.eos_ids), self.model.vocab_size
        if count > vocab_size:
            raise ValueError(
                f"beam_width={beam_width} looks at {count} tokens per step, more than the "
                f"vocabulary of {vocab_size}"
            )
        return count

    def scorings(self, token_lists: Sequence[Sequence[int]]) -> list[Request]:
        """Requests that score the lists. They share blocks with each other and no other request."""
        if isinstance(token_lists, str):
            raise ValueError(f"{token_lists!r} is one text; give lists of token ids")
        namespace = object()  # cached keys of other requests have no scores
        requests = []
        for index, ids in enumerate(token_lists):
            try:
                requests.append(self.scoring(ids, namespace))
            except ValueError as error:
                raise ValueError(f"token list {index}: {error}") from None
        return requests

    def scoring(self, token_ids: Sequence[int], namespace: Hashable = None) -> Request:
        """A request that scores its tokens and generates none; admitted like others."""
        ids = self._token_ids(token_ids)
        if len(ids) > self.max_model_len:
            raise ValueError(
                f"{len(ids)} tokens to score exceed max_model_len={self.max_model_len}"
            )
        self._check_fits(len(ids))
        return Request(
            id="score", tokens=ids, num_prompt=len(ids), params=SamplingParams(),
            max_len=len(ids), stop_ids=frozenset(), eos_ids=frozenset(), score=True,
            namespace=namespace,
        )  # fmt: skip

    def _token_ids(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ValueError(f"the prompt {prompt!r} is text and there is no tokenizer")
            ids = encode(self.tokenizer, prompt)
        else:
            try:
                if isinstance(prompt, bytes | bytearray):
                    raise TypeError("not text, and not ids either")
                # Convert an array at once: each element by itself would be a device transfer.
                listed = prompt.tolist() if hasattr(prompt, "tolist") else prompt
                ids = [operator.index(token) for token in listed]
            except TypeError:
                raise ValueError(
                    f"the prompt {prompt!r} must be a string or a list of token ids"
                ) from None
        if not ids:
            raise ValueError(f"the prompt {prompt!r} is empty; give it at least one token")
        self._check_ids(ids, "the prompt")
        return ids

    def _check_ids(self, ids: Sequence[int], what: str) -> None:
        for token in (ids and (min(ids), max(ids))) or ():
            if not 0 <= token < self.model.vocab_size:
                raise ValueError(
                    f"token id {token} in {what} is outside the vocabulary of "
                    f"{self.model.vocab_size}"
                )

    def _check_fits(self, num_tokens: int) -> None:
        need = self.blocks.blocks_for(num_tokens)
        if need > self.blocks.num_blocks:
            raise ValueError(
                f"{num_tokens} tokens need {need} KV blocks of {self.blocks.block_size} and the "
                f"pool has {self.blocks.num_blocks}; raise num_blocks or kv_cache_bytes"
            )

    def fresh_seed(self, arrival: int) -> int:
        """A 32-bit seed that depends on the engine's seed and the arrival number only."""
        digest = hashlib.blake2s(f"{self.seed},{arrival}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "little")
