"""Outputs that nobody has read yet."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from pagedjax.outputs import CompletionOutput, RequestOutput


class Mailbox:
    """A queue of outputs."""

    def __init__(self) -> None:
        self._outputs: list[RequestOutput] = []

    def __bool__(self) -> bool:
        return bool(self._outputs)

    def __contains__(self, request_id: str) -> bool:
        return any(each.request_id == request_id for each in self._outputs)

    def add(self, output: RequestOutput) -> None:
        """Append an output."""
        self._outputs.append(output)

    def put_back(self, outputs: Sequence[RequestOutput]) -> None:
        """Put outputs before all others."""
        self._outputs = [*outputs, *self._outputs]

    def take(self) -> list[RequestOutput]:
        """Remove and return all outputs."""
        taken, self._outputs = self._outputs, []
        return taken

    def take_of(self, request_ids: Collection[str]) -> list[RequestOutput]:
        """Remove and return the outputs of some requests."""
        taken = [each for each in self._outputs if each.request_id in request_ids]
        if taken:
            self._outputs = [each for each in self._outputs if each.request_id not in request_ids]
        return taken


def joined(snapshots: Sequence[RequestOutput]) -> RequestOutput:
    """One request's snapshots as one: the last, with what is new in any of them."""
    samples = range(len(snapshots[-1].outputs))
    outputs = [_joined([each.outputs[index] for each in snapshots]) for index in samples]
    return replace(snapshots[-1], outputs=outputs)


def _joined(parts: Sequence[CompletionOutput]) -> CompletionOutput:
    ids = [token for each in parts for token in each.delta_token_ids]
    text = "".join(each.delta_text for each in parts)
    last = replace(parts[-1], delta_token_ids=ids, delta_text=text)
    if all(each.token_ids == each.delta_token_ids for each in parts):  # each has only its news
        last = replace(last, token_ids=list(ids), text=text)
        if last.logprobs is not None:
            last = replace(last, logprobs=[one for each in parts for one in each.logprobs or ()])
    return last
