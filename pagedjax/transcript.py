"""One request's output as the user has seen it so far, and the snapshots made from it."""

from __future__ import annotations

from pagedjax.request import CompletionOutput, Request, RequestOutput
from pagedjax.text import Detokenizer


class Transcript:
    """Turns a request's tokens into cumulative RequestOutputs, each with its own deltas.

    `detokenizer` is None where no text is wanted; texts are then empty.
    """

    def __init__(self, request: Request, detokenizer: Detokenizer | None) -> None:
        self.request = request
        self._detokenizer = detokenizer
        self._num_shown = 0

    def snapshot(self) -> RequestOutput:
        """All output so far; what is new since the last call is in the deltas."""
        request = self.request
        ids = request.output_ids
        news = ids[self._num_shown :]
        self._num_shown = len(ids)
        text = delta_text = ""
        if self._detokenizer is not None:
            delta_text = self._detokenizer.append(news, final=request.is_finished)
            text = self._detokenizer.text
        completion = CompletionOutput(
            index=0,
            token_ids=ids,
            text=text,
            delta_token_ids=news,
            delta_text=delta_text,
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
        )
        return RequestOutput(
            request_id=request.id,
            prompt_token_ids=request.tokens[: request.num_prompt],
            outputs=[completion],
            finished=request.is_finished,
        )
