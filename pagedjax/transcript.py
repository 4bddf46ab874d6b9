"""One request's output as the user has seen it so far, and the snapshots made from it."""

from __future__ import annotations

from typing import Any

from pagedjax.request import CompletionOutput, Request, RequestOutput
from pagedjax.text import Detokenizer


class Transcript:
    """Turns the tokens of a request's samples into cumulative RequestOutputs with deltas.

    samples: the request and its siblings. tokenizer: None where no text is wanted; texts are then
    empty.
    """

    def __init__(self, samples: list[Request], tokenizer: Any) -> None:
        self.samples = samples
        self._tokenizer = tokenizer if samples[0].params.detokenize else None
        self._texts = [self._new_text(each) for each in samples]
        self._num_shown = [0] * len(samples)

    @property
    def is_finished(self) -> bool:
        """Whether every sample is."""
        return all(each.is_finished for each in self.samples)

    def snapshot(self) -> RequestOutput:
        """All output so far; what is new since the last call is in the deltas."""
        first = self.samples[0]
        return RequestOutput(
            request_id=first.id,
            prompt_token_ids=first.tokens[: first.num_prompt],
            outputs=[self._completion(index) for index in range(len(self.samples))],
            finished=self.is_finished,
            num_cached_tokens=first.num_cached_tokens or 0,
        )

    def fork(self, child: Request) -> Transcript:
        """The transcript of a copy of the only sample: what was shown counts as shown."""
        twin = Transcript([child], self._tokenizer)
        text = self._texts[0]
        twin._texts = [text.copy() if text else None]
        twin._num_shown = list(self._num_shown)
        return twin

    def rewind(self) -> None:
        """Start again from the tokens that the only sample has now; they count as shown."""
        ids = self.samples[0].output_ids
        self._texts = [self._new_text(self.samples[0])]
        if self._texts[0]:
            self._texts[0].append(ids)
        self._num_shown = [len(ids)]

    def _completion(self, index: int) -> CompletionOutput:
        request, detokenizer = self.samples[index], self._texts[index]
        ids = request.output_ids
        news = ids[self._num_shown[index] :]
        self._num_shown[index] = len(ids)
        text = delta_text = ""
        if detokenizer is not None:
            delta_text = detokenizer.append(news, final=request.is_finished)
            text = detokenizer.text
        return CompletionOutput(
            index=index,
            token_ids=ids,
            text=text,
            delta_token_ids=news,
            delta_text=delta_text,
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
        )

    def _new_text(self, request: Request) -> Detokenizer | None:
        if self._tokenizer is None:
            return None
        prompt = request.tokens[: request.num_prompt]
        return Detokenizer(self._tokenizer, prompt, request.params.skip_special_tokens)
