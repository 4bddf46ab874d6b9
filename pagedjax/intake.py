"""From a prompt to a checked Request: everything that can be refused is refused here."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagedjax.blocks import BlockPool
from pagedjax.config import ModelConfig
from pagedjax.request import Request, SamplingParams, Status
from pagedjax.text import encode

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Intake:
    """The limits that requests of one engine must respect."""

    model: ModelConfig
    max_model_len: int
    blocks: BlockPool
    seed: int
    tokenizer: Any = None

    def request(
        self, request_id: str, prompt: Prompt, params: SamplingParams, arrival: int
    ) -> Request:
        """A Request that can be served; ValueError with the value and the remedy otherwise."""
        if not isinstance(params, SamplingParams):
            raise ValueError(f"sampling_params={params!r} must be a SamplingParams")
        ids = self._token_ids(prompt)
        if len(ids) >= self.max_model_len:
            raise ValueError(
                f"the prompt has {len(ids)} tokens, which leaves no room for output in "
                f"max_model_len={self.max_model_len}; shorten it or raise max_model_len"
            )
        self._check_fits(len(ids))
        stop_ids = frozenset(params.stop_token_ids or ())
        self._check_ids(sorted(stop_ids), "stop_token_ids")
        pool_tokens = self.blocks.num_blocks * self.blocks.block_size
        first = Request(
            id=request_id,
            arrival=arrival,
            tokens=ids,
            num_prompt=len(ids),
            params=params,
            seed=self.fresh_seed(arrival) if params.seed is None else params.seed,
            # A pool filled by one request alone still yields one more token, which needs no slot.
            max_len=min(len(ids) + params.max_tokens, self.max_model_len, pool_tokens + 1),
            stop_ids=stop_ids,
            eos_ids=frozenset(() if params.ignore_eos else self.model.eos_token_ids),
            namespace=params.cache_salt,
        )
        first.siblings = [
            first.copy(sample_index=i, status=Status.HELD) for i in range(1, params.n)
        ]
        return first

    def scoring(self, token_ids: Sequence[int], arrival: int) -> Request:
        """A request that scores its tokens and generates none."""
        ids = self._token_ids(token_ids)
        if len(ids) > self.max_model_len:
            raise ValueError(
                f"{len(ids)} tokens to score exceed max_model_len={self.max_model_len}"
            )
        self._check_fits(len(ids))
        return Request(
            id=f"score of arrival {arrival}", arrival=arrival, tokens=ids, num_prompt=len(ids),
            params=SamplingParams(), seed=0, max_len=len(ids), stop_ids=frozenset(),
            eos_ids=frozenset(), score=True,
        )  # fmt: skip

    def _token_ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ValueError(f"the prompt {prompt!r} is text and there is no tokenizer")
            ids = encode(self.tokenizer, prompt)
        else:
            try:
                ids = [operator.index(token) for token in prompt]
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
        """A 32-bit seed of its own for each arrival, the same in every process."""
        digest = hashlib.blake2s(f"{self.seed},{arrival}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "little")
