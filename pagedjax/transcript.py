"""One request's output as the user has seen it so far, and the snapshots made from it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from pagedjax.request import Candidates, CompletionOutput, Logprob, Request, RequestOutput
from pagedjax.sampling_params import SamplingParams
from pagedjax.stop_strings import StopStrings
from pagedjax.text import REPLACEMENT, Detokenizer

OnStop = Callable[[Request, str], None]


class CutText:
    """A Detokenizer whose text ends at the first stop string; nothing is added after that.

    Each token's text is watched by itself, so the end does not depend on how many tokens arrive
    at a time. What the first `min_tokens` tokens complete does not count.
    """

    def __init__(self, detokenizer: Detokenizer, params: SamplingParams) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(params.stop_strings, params.include_stop_str_in_output)
        self._num_unwatched = params.min_tokens
        self.text = ""

    @property
    def stop_string(self) -> str | None:
        """The one that ended the text; None until then."""
        return self._stops.match

    def copy(self) -> CutText:
        """A text that goes on from here by itself."""
        twin = copy.copy(self)
        twin._detokenizer, twin._stops = self._detokenizer.copy(), self._stops.copy()
        return twin

    def append(self, token_ids: Sequence[int], final: bool = False) -> str:
        """The text that became certain with these tokens; `final` releases all that is held."""
        piece = "".join(self._append([token]) for token in token_ids)
        if final:
            piece += self._append([], final) + self._stops.release()
        self.text += piece
        return piece

    def _append(self, token_ids: Sequence[int], final: bool = False) -> str:
        if self.stop_string is not None:
            return ""
        self._num_unwatched -= len(token_ids)
        piece = self._detokenizer.append(token_ids, final)
        return self._stops.append(piece, watch=self._num_unwatched < 0)


class LogprobTexts:
    """Turns what the device reported about tokens into what a user reads."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str | None] = {}

    def of_output(self, request: Request) -> list[dict[int, Logprob]] | None:
        """One dict an output token: the token itself and the best ones beside it."""
        if request.params.logprobs is None:
            return None
        known = request.token_logprobs[: len(request.output_ids)]
        return [self._dict(each) for each in known]

    def sum_of_output(self, request: Request) -> float | None:
        """Log probability of the whole output."""
        if request.params.logprobs is None:
            return None
        return sum(each.logprob for each in request.token_logprobs[: len(request.output_ids)])

    def of_prompt(self, request: Request) -> list[dict[int, Logprob] | None] | None:
        """One dict a prompt token, None for the first and for those not computed yet."""
        if request.params.prompt_logprobs is None:
            return None
        return [None, *(each and self._dict(each) for each in request.prompt_logprobs)]

    def _dict(self, each: Candidates) -> dict[int, Logprob]:
        found = {each.token: Logprob(each.logprob, each.rank, self._text(each.token))}
        for rank, (token, logprob) in enumerate(each.best, start=1):
            found.setdefault(token, Logprob(logprob, rank, self._text(token)))
        return found

    def _text(self, token: int) -> str | None:
        if token not in self._texts:
            decode = self._tokenizer and self._tokenizer.decode
            self._texts[token] = decode([token], skip_special_tokens=False) if decode else None
        return self._texts[token]


class Transcript:
    """Turns the tokens of a request's samples into cumulative RequestOutputs with deltas.

    samples: the request and its siblings. tokenizer: None where no text is wanted; texts are then
    empty. every_step: whether somebody reads it before it is finished; if not, snapshots before
    that are made only where stop strings are looked for.
    """

    def __init__(self, samples: list[Request], tokenizer: Any, every_step: bool = True) -> None:
        self.samples = samples
        self.every_step = every_step
        self._tokenizer = tokenizer if samples[0].params.detokenize else None
        self._texts = [self._new_text(each) for each in samples]
        self._num_shown = [0] * len(samples)
        # Stop strings are looked for in every snapshot.
        self._looks_for_stops = any(isinstance(text, CutText) for text in self._texts)
        self._logprobs = LogprobTexts(self._tokenizer)

    @property
    def is_finished(self) -> bool:
        """Whether every sample is."""
        return all(each.is_finished for each in self.samples)

    def is_told(self, sample: Request, only_ends: bool) -> bool:
        """Whether the sample's new token makes a snapshot; only_ends: nobody reads the others."""
        if (self.every_step and not only_ends) or self._looks_for_stops:
            return True
        return sample.is_finished and self.is_finished

    def snapshot(self, on_stop: OnStop | None = None) -> RequestOutput:
        """All output so far; what is new since the last call is in the deltas.

        on_stop: has to end a sample whose text has come to a stop string. Without it such a sample
            keeps its finish reason.
        """
        first = self.samples[0]
        outputs = [self._completion(index, on_stop) for index in range(len(self.samples))]
        return RequestOutput(
            request_id=first.id,
            prompt_token_ids=first.tokens[: first.num_prompt],
            outputs=outputs,
            finished=self.is_finished,
            prompt_logprobs=self._logprobs.of_prompt(first),
            num_cached_tokens=first.num_cached_tokens or 0,
        )

    def fork(self, child: Request) -> Transcript:
        """The transcript of a copy of the only sample: what was shown counts as shown."""
        twin = Transcript([child], self._tokenizer)
        text = self._texts[0]
        twin._texts = [text.copy() if text else None]
        twin._num_shown = list(self._num_shown)
        return twin

    def rewind(self, unread: Sequence[RequestOutput]) -> None:
        """Start again from the tokens that the only sample has now.

        unread: the last snapshots, which nobody will read; what came before them counts as shown.
        """
        ids = self.samples[0].output_ids
        num_unread = sum(len(each.outputs[0].delta_token_ids) for each in unread)
        shown = ids[: max(0, self._num_shown[0] - num_unread)]
        self._texts = [self._new_text(self.samples[0])]
        if self._texts[0]:
            self._texts[0].append(shown)
        self._num_shown = [len(shown)]

    def _completion(self, index: int, on_stop: OnStop | None) -> CompletionOutput:
        request, text = self.samples[index], self._texts[index]
        ids = request.output_ids
        news = ids[self._num_shown[index] :]
        self._num_shown[index] = len(ids)
        delta_text = self._append(index, news, request.is_finished) if text else ""
        text = self._texts[index]
        if news and on_stop and isinstance(text, CutText) and text.stop_string is not None:
            on_stop(request, text.stop_string)
        return CompletionOutput(
            index=index,
            token_ids=ids,
            text=text.text if text else "",
            delta_token_ids=news,
            delta_text=delta_text,
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
            logprobs=self._logprobs.of_output(request),
            cumulative_logprob=self._logprobs.sum_of_output(request),
        )

    def _append(self, index: int, ids: list[int], final: bool) -> str:
        """The new text. Where several tokens come at once and one is no character, they are
        decoded one by one: some decoders give up a whole run of bytes for one broken one."""
        text = self._texts[index]
        assert text is not None
        if len(ids) < 2 or isinstance(text, CutText):
            return text.append(ids, final=final)
        whole = text.copy()
        piece = whole.append(ids, final=final)
        if REPLACEMENT in piece:
            return "".join(text.append([each]) for each in ids[:-1]) + text.append(
                ids[-1:], final=final
            )
        self._texts[index] = whole
        return piece

    def _new_text(self, request: Request) -> Detokenizer | CutText | None:
        if self._tokenizer is None:
            return None
        params, prompt = request.params, request.tokens[: request.num_prompt]
        text = Detokenizer(self._tokenizer, prompt, params.skip_special_tokens)
        return CutText(text, params) if params.stop_strings else text
