"""One request's output as the user has seen it so far, and the snapshots made from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pagedjax.outputs import FinishReason, RequestOutput
from pagedjax.schedule.request import Request
from pagedjax.text.logprob_texts import TokenTexts
from pagedjax.text.sample_output import SampleOutput

End = Callable[[Request, FinishReason, str], None]  # the last is its stop_reason


class Transcript:
    """Turns the tokens of a request's samples into RequestOutputs.

    samples: the request and its siblings. tokenizer: for texts, if the request wants them.
    every_step: whether outputs are made before the request ends; never with "final_only".
    """

    def __init__(self, samples: Sequence[Request], tokenizer: Any, every_step: bool = True) -> None:
        self.samples = list(samples)
        params = samples[0].params
        self.every_step = every_step and params.output_kind != "final_only"
        tokenizer = tokenizer if params.detokenize else None
        texts = TokenTexts(tokenizer)
        self._outputs = [SampleOutput(each, tokenizer, texts) for each in samples]
        self._looks_for_stops = any(each.looks_for_stops for each in self._outputs)

    @property
    def is_finished(self) -> bool:
        """Whether every sample is."""
        return all(each.is_finished for each in self.samples)

    def advance(self, end: End, only_end: bool = False) -> RequestOutput | None:
        """Take up new tokens; return a snapshot if somebody will read it.

        end: called for a sample whose text contains a stop string, or whose tokenizer has raised.
        only_end: only the last snapshot will be read.
        """
        is_told = self.every_step and not only_end
        if is_told or self._looks_for_stops or self.is_finished:
            for each in self._outputs:
                if (why := each.read()) is not None:
                    end(each.request, *why)
        return self.snapshot() if is_told or self.is_finished else None

    def snapshot(self) -> RequestOutput:
        """The output so far; the deltas have what is new since the last call."""
        first = self.samples[0]
        for each in self._outputs:
            each.read()
        return RequestOutput(
            request_id=first.id,
            prompt_token_ids=first.tokens[: first.num_prompt],
            outputs=[each.snapshot(index) for index, each in enumerate(self._outputs)],
            finished=self.is_finished,
            prompt_logprobs=self._outputs[0].prompt_logprobs(),
            num_cached_tokens=first.num_cached_tokens or 0,
        )

    def abort(self, abort: Callable[[Request], None]) -> RequestOutput:
        """End the unfinished samples by `abort`; return the last snapshot."""
        for request in self.samples:
            if not request.is_finished:
                abort(request)
        return self.snapshot()

    def fork(self, child: Request) -> Transcript:
        """The transcript of a copy of the only sample: what was shown counts as shown of both."""
        twin = Transcript([child], None)
        twin._outputs = [self._outputs[0].fork(child)]
        twin._looks_for_stops = self._looks_for_stops
        return twin

    def rewind(self, unread: Sequence[RequestOutput]) -> None:
        """Start again from the tokens that the only sample has now.

        unread: the last snapshots, which nobody will read; earlier ones count as shown.
        """
        self._outputs[0].rewind(sum(len(each.outputs[0].delta_token_ids) for each in unread))
