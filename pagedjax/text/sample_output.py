"""One sample's output as it grows: its text and log probabilities, and how much was shown."""

from __future__ import annotations

from typing import Any

from pagedjax.outputs import CompletionOutput, FinishReason, Logprob
from pagedjax.schedule.request import Request
from pagedjax.text.cut_text import CutText
from pagedjax.text.detokenizer import REPLACEMENT, Detokenizer
from pagedjax.text.logprob_texts import LogprobTexts, TokenTexts


class SampleOutput:
    """Takes up a request's new tokens and makes snapshots of the output.

    Each token is decoded once, however often it is shown. Where `output_kind` is "delta" the cost
    of a snapshot does not depend on the length of the output.

    tokenizer: None where no text is wanted; texts are then empty.
    """

    def __init__(self, request: Request, tokenizer: Any, token_texts: TokenTexts) -> None:
        self.request = request
        self._tokenizer = tokenizer
        self._text: Detokenizer | CutText | None = None  # until something is read
        self._num_read = 0  # output tokens that the text has taken up
        self._is_ended = False  # the text is final
        self._shown_tokens = self._shown_chars = 0
        self._token_texts = token_texts
        self._logprobs = _Logprobs(token_texts)
        self._prompt_texts = LogprobTexts(token_texts)
        self._of_prompt: list[dict[int, Logprob] | None] = [None]  # the first token has none

    @property
    def looks_for_stops(self) -> bool:
        """Whether its text decides when it ends."""
        return self._tokenizer is not None and bool(self.request.params.stop_strings)

    def read(self) -> tuple[FinishReason, str] | None:
        """Take up new tokens; return a finish reason and a stop reason if they end the sample.

        That is "stop" and the stop string that the text now contains, or "error" and what the
        tokenizer raised; the tokenizer is not used after that.
        """
        try:
            stop = self._read_text()
            self._read_logprobs()
        except Exception as error:  # the tokenizer is the user's, and may raise anything
            self._is_ended = True
            self._logprobs.texts = self._prompt_texts = LogprobTexts(TokenTexts(None))
            self._read_logprobs()
            return "error", f"the tokenizer: {type(error).__name__}: {error}"
        return None if stop is None else ("stop", stop)

    def snapshot(self, index: int) -> CompletionOutput:
        """The output read so far, as sample `index`; only what is new where the kind is "delta"."""
        request = self.request
        num_tokens, text = request.num_output, self._text.text if self._text else ""
        news = request.tokens[request.num_prompt + self._shown_tokens :]
        new_text = text[self._shown_chars :]
        is_delta = request.params.output_kind == "delta"
        first = self._shown_tokens if is_delta else 0
        self._shown_tokens, self._shown_chars = num_tokens, len(text)
        has_logprobs = request.params.logprobs is not None
        return CompletionOutput(
            index=index,
            token_ids=list(news) if is_delta else request.output_ids,
            text=new_text if is_delta else text,
            delta_token_ids=news,
            delta_text=new_text,
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
            logprobs=self._logprobs.dicts[first:] if has_logprobs else None,
            cumulative_logprob=self._logprobs.total if has_logprobs else None,
        )

    def prompt_logprobs(self) -> list[dict[int, Logprob] | None] | None:
        """One dict per prompt token, None for the first and for those not read yet."""
        request = self.request
        if request.params.prompt_logprobs is None:
            return None
        return self._of_prompt + [None] * (request.num_prompt - len(self._of_prompt))

    def fork(self, child: Request) -> SampleOutput:
        """The output of a copy of the request: what was shown of one counts as shown of both."""
        twin = SampleOutput(child, self._tokenizer, self._token_texts)
        twin._text = self._text.copy() if self._text else None
        twin._num_read = self._num_read
        twin._shown_tokens, twin._shown_chars = self._shown_tokens, self._shown_chars
        return twin

    def rewind(self, num_unread: int) -> None:
        """Start again from the tokens that the request has now.

        num_unread: how many of the tokens shown last nobody has read; earlier ones count as shown.
        """
        shown = self.request.output_ids[: max(0, self._shown_tokens - num_unread)]
        self._text, self._shown_tokens = None, len(shown)
        self._logprobs = _Logprobs(self._token_texts)

    def _read_text(self) -> str | None:
        """Decode the new tokens; return the stop string that they complete, if any."""
        if self._tokenizer is None or self._is_ended:
            return None
        request = self.request
        if self._text is None:  # made anew after `rewind`: it starts with what was shown
            self._text = self._new_text()
            self._text.append(request.output_ids[: self._shown_tokens])
            self._num_read, self._shown_chars = self._shown_tokens, len(self._text.text)
        news = request.tokens[request.num_prompt + self._num_read :]
        if not news and not request.is_finished:
            return None
        self._num_read += len(news)
        self._is_ended = request.is_finished
        if request.ended_by_id and not request.params.include_stop_str_in_output:
            news = news[:-1]  # the ids keep the token that ended the output; the text does not
        self._append(news, final=request.is_finished)
        return self._text.stop_string if news and isinstance(self._text, CutText) else None

    def _read_logprobs(self) -> None:
        request = self.request
        if request.params.logprobs is not None:
            self._logprobs.read(request)
        if request.num_prompt_logprobs:
            known = request.prompt_logprobs[len(self._of_prompt) - 1 :]
            self._of_prompt += [self._prompt_texts.append(each) for each in known]

    def _append(self, ids: list[int], final: bool) -> None:
        """Decode tokens one by one if, decoded together, they contain a broken character.

        Some decoders replace a whole run of bytes because of a single broken one.
        """
        text = self._text
        assert text is not None
        if len(ids) < 2 or isinstance(text, CutText):
            text.append(ids, final=final)
            return
        whole = text.copy()
        if REPLACEMENT not in whole.append(ids, final=final):
            self._text = whole
            return
        for each in ids[:-1]:
            text.append([each])
        text.append(ids[-1:], final=final)

    def _new_text(self) -> Detokenizer | CutText:
        params, prompt = self.request.params, self.request.tokens[: self.request.num_prompt]
        text = Detokenizer(self._tokenizer, prompt, params.skip_special_tokens)
        return CutText(text, params) if params.stop_strings else text


class _Logprobs:
    """The log probabilities of one output as the user reads them."""

    def __init__(self, token_texts: TokenTexts) -> None:
        self.texts = LogprobTexts(token_texts)
        self.dicts: list[dict[int, Logprob]] = []
        self.total = 0.0  # of the output's own tokens

    def read(self, request: Request) -> None:
        """Take up what the request has beyond the dicts made so far."""
        news = request.token_logprobs[len(self.dicts) : request.num_output]
        for each in news:
            is_last = request.is_finished and len(self.dicts) + 1 == request.num_output
            self.dicts.append(self.texts.append(each, final=is_last))
            self.total += each.logprob
