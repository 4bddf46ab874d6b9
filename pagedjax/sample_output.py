"""One sample's output as it grows: what its tokens read like, and how much of that was shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pagedjax.cut_text import CutText
from pagedjax.request import Candidates, CompletionOutput, FinishReason, Logprob, Request
from pagedjax.text import REPLACEMENT, Detokenizer

OnStop = Callable[[Request, FinishReason, str], None]  # the last is its stop_reason


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

    def give_up(self) -> None:
        """Say no more texts: the tokenizer does not stand it."""
        self._tokenizer = None

    def _text(self, token: int) -> str | None:
        if token not in self._texts:
            decode = self._tokenizer and self._tokenizer.decode
            self._texts[token] = decode([token], skip_special_tokens=False) if decode else None
        return self._texts[token]


class SampleOutput:
    """Takes up a request's new tokens, and shows all of them with what is new in deltas.

    Work per token does not grow with the output: texts and log probabilities are kept.

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

    def read(self, on_stop: OnStop | None = None) -> None:
        """Take up the tokens that have come.

        on_stop: has to end the sample if its text has come to a stop string. Without it the sample
            keeps its finish reason.
        """
        if self._tokenizer is None or self._is_ended:
            return
        request, self._text = self.request, self._text or self._new_text()
        news = request.tokens[request.num_prompt + self._num_read :]
        self._num_read += len(news)
        self._is_ended = request.is_finished
        self._append(news, final=request.is_finished)
        if news and on_stop and isinstance(self._text, CutText) and self._text.stop_string:
            on_stop(request, "stop", self._text.stop_string)

    def give_up(self) -> None:
        """Read no more: the tokenizer does not stand it."""
        self._is_ended = True

    def snapshot(self, index: int) -> CompletionOutput:
        """All that was read so far, as sample `index`."""
        request, ids = self.request, self.request.output_ids
        text = self._text.text if self._text else ""
        news, new_text = ids[self._shown_tokens :], text[self._shown_chars :]
        self._shown_tokens, self._shown_chars = len(ids), len(text)
        has_logprobs = request.params.logprobs is not None
        if has_logprobs:
            self._read_logprobs()
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
        """One dict a prompt token, None for the first and for those not computed yet."""
        request = self.request
        if request.params.prompt_logprobs is None:
            return None
        news = request.prompt_logprobs[len(self._of_prompt) - 1 :]
        self._of_prompt += map(self._logprob_texts.dict_of, news)
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
        self._num_read = self._shown_tokens = len(shown)
        self._text, self._shown_chars = None, 0
        if self._tokenizer is not None:
            self._text = self._new_text()
            self._text.append(shown)
            self._shown_chars = len(self._text.text)
        del self._logprobs[self.request.num_output :], self._of_tokens[self.request.num_output :]

    def _read_logprobs(self) -> None:
        news = self.request.token_logprobs[len(self._logprobs) : self.request.num_output]
        self._logprobs += map(self._logprob_texts.dict_of, news)
        self._of_tokens += [each.logprob for each in news]

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
