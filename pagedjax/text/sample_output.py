"""One sample's output as it grows: what its tokens read like, and how much of that was shown."""

from __future__ import annotations

from typing import Any

from pagedjax.outputs import CompletionOutput, FinishReason, Logprob
from pagedjax.schedule.request import Candidates, Request
from pagedjax.text.cut_text import CutText
from pagedjax.text.detokenizer import REPLACEMENT, Detokenizer


class LogprobTexts:
    """Turns what the device reported about tokens into what a user reads."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str | None] = {}

    def dict_of(self, each: Candidates) -> dict[int, Logprob]:
        """The token itself, and the best ones beside it."""
        found = {each.token: Logprob(each.logprob, each.rank, self._text(each.token))}
        for rank, (token, logprob) in enumerate(each.best, start=1):
            found.setdefault(token, Logprob(logprob, rank, self._text(token)))
        return found

    def _text(self, token: int) -> str | None:
        if token not in self._texts:
            decode = self._tokenizer and self._tokenizer.decode
            self._texts[token] = decode([token], skip_special_tokens=False) if decode else None
        return self._texts[token]


class SampleOutput:
    """Takes up a request's new tokens, and shows all of them with what is new in deltas.

    Each token is decoded once, however often it is shown.

    tokenizer: None where no text is wanted; texts are then empty.
    """

    def __init__(self, request: Request, tokenizer: Any, logprob_texts: LogprobTexts) -> None:
        self.request = request
        self._tokenizer = tokenizer
        self._text: Detokenizer | CutText | None = None  # until something is read
        self._num_read = 0  # tokens that the text has
        self._is_ended = False  # and nothing more can come
        self._shown_tokens = self._shown_chars = 0
        self._logprob_texts = logprob_texts
        self._logprobs: list[dict[int, Logprob]] = []
        self._of_tokens: list[float] = []  # their own log probabilities alone
        self._of_prompt: list[dict[int, Logprob] | None] = [None]  # nothing is before the first

    @property
    def looks_for_stops(self) -> bool:
        """Whether its text decides when it ends."""
        return self._tokenizer is not None and bool(self.request.params.stop_strings)

    def read(self) -> tuple[FinishReason, str] | None:
        """Take up the tokens that have come.

        Returns why the sample has to end because of them: "stop" and the stop string that its text
        has come to, or "error" and what the tokenizer raised, which is read from no more.
        """
        try:
            stop = self._read_text()
            self._read_logprobs()
        except Exception as error:  # the tokenizer is the user's, and may raise anything
            self._is_ended, self._logprob_texts = True, LogprobTexts(None)
            self._read_logprobs()
            return "error", f"the tokenizer: {type(error).__name__}: {error}"
        return None if stop is None else ("stop", stop)

    def snapshot(self, index: int) -> CompletionOutput:
        """All that was read so far, as sample `index`."""
        request, ids = self.request, self.request.output_ids
        text = self._text.text if self._text else ""
        news, new_text = ids[self._shown_tokens :], text[self._shown_chars :]
        self._shown_tokens, self._shown_chars = len(ids), len(text)
        has_logprobs = request.params.logprobs is not None
        return CompletionOutput(
            index=index,
            token_ids=ids,
            text=text,
            delta_token_ids=news,
            delta_text=new_text,
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
            logprobs=list(self._logprobs) if has_logprobs else None,
            cumulative_logprob=sum(self._of_tokens) if has_logprobs else None,
        )

    def prompt_logprobs(self) -> list[dict[int, Logprob] | None] | None:
        """One dict a prompt token, None for the first and for those not read yet."""
        request = self.request
        if request.params.prompt_logprobs is None:
            return None
        return self._of_prompt + [None] * (request.num_prompt - len(self._of_prompt))

    def fork(self, child: Request) -> SampleOutput:
        """The output of a copy of the request: what was shown counts as shown."""
        twin = SampleOutput(child, self._tokenizer, self._logprob_texts)
        twin._text = self._text.copy() if self._text else None
        twin._num_read = self._num_read
        twin._shown_tokens, twin._shown_chars = self._shown_tokens, self._shown_chars
        return twin

    def rewind(self, num_unread: int) -> None:
        """Start again from the tokens that the request has now.

        num_unread: the last of the tokens shown, which nobody has seen; those before count as
            shown.
        """
        shown = self.request.output_ids[: max(0, self._shown_tokens - num_unread)]
        self._text, self._shown_tokens = None, len(shown)
        del self._logprobs[self.request.num_output :], self._of_tokens[self.request.num_output :]

    def _read_text(self) -> str | None:
        """The stop string that the text has come to with the new tokens."""
        if self._tokenizer is None or self._is_ended:
            return None
        request = self.request
        if self._text is None:  # a text made anew has read what was shown
            self._text = self._new_text()
            self._text.append(request.output_ids[: self._shown_tokens])
            self._num_read, self._shown_chars = self._shown_tokens, len(self._text.text)
        news = request.tokens[request.num_prompt + self._num_read :]
        if not news and not request.is_finished:
            return None  # as when a snapshot follows at once: nothing is decoded again
        self._num_read += len(news)
        self._is_ended = request.is_finished
        self._append(news, final=request.is_finished)
        return self._text.stop_string if news and isinstance(self._text, CutText) else None

    def _read_logprobs(self) -> None:
        request, dict_of = self.request, self._logprob_texts.dict_of
        if request.params.logprobs is not None:
            news = request.token_logprobs[len(self._logprobs) : request.num_output]
            self._logprobs += [dict_of(each) for each in news]
            self._of_tokens += [each.logprob for each in news]
        if request.num_prompt_logprobs:
            known = request.prompt_logprobs[len(self._of_prompt) - 1 :]
            self._of_prompt += [dict_of(each) for each in known]

    def _append(self, ids: list[int], final: bool) -> None:
        """Where several tokens come at once and one is no character, they are decoded one by one:
        some decoders give up a whole run of bytes for one broken one."""
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
