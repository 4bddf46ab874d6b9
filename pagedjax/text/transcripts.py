"""The outputs of all live requests of an engine, and the unread outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pagedjax.outputs import RequestOutput
from pagedjax.schedule.request import Request
from pagedjax.text.mailbox import Mailbox, joined
from pagedjax.text.transcript import End, Transcript


class Transcripts:
    """One transcript per live request, by request id.

    unread: outputs that no caller has read.
    only_ends: whether outputs are made only when a request ends.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._live: dict[str, Transcript] = {}
        self.unread = Mailbox()
        self.only_ends = False

    def __getitem__(self, request_id: str) -> Transcript:
        return self._live[request_id]

    def is_in_use(self, request_id: str) -> bool:
        """Whether a request of that id is live, or an output of it unread."""
        return request_id in self._live or request_id in self.unread

    def open(self, request: Request, every_step: bool) -> None:
        """Start the transcript of a request and its siblings; `every_step`: see `Transcript`."""
        samples = [request, *request.siblings]
        self._live[request.id] = Transcript(samples, self._tokenizer, every_step)

    def advance(self, progressed: Iterable[Request], end: End) -> None:
        """Take up the new tokens of some requests; `end`: see `Transcript.advance`."""
        for request_id in dict.fromkeys(each.id for each in progressed):
            transcript = self._live[request_id]
            output = transcript.advance(end, self.only_ends)
            if output:
                self.unread.add(output)
            if transcript.is_finished:
                del self._live[request_id]

    def abort(self, request_id: str, abort: Callable[[Request], None]) -> RequestOutput | None:
        """End a request by `abort`; return its unread output, None for an unknown id."""
        outputs = self.unread.take_of((request_id,))
        if transcript := self._live.pop(request_id, None):
            outputs.append(transcript.abort(abort))
        return joined(outputs) if outputs else None

    def only_sample(self, request_id: str, what: str) -> Request:
        """The live request of that id; ValueError if there is none, or it has n > 1."""
        if request_id not in self._live:
            raise ValueError(f"{what}: no live request has the id {request_id!r}")
        samples = self._live[request_id].samples
        if len(samples) > 1:
            raise ValueError(f"{what} of {request_id!r}, which has n={len(samples)}; supported: 1")
        return samples[0]

    def fork(self, request_id: str, child: Request) -> None:
        """Start the transcript of a copy of a request: outputs read so far count for both."""
        self._live[child.id] = self._live[request_id].fork(child)

    def rewind(self, request_id: str) -> None:
        """Follow a request that has lost its last tokens; its unread outputs are dropped."""
        self._live[request_id].rewind(self.unread.take_of((request_id,)))
