"""Log probabilities of given token lists: queue requests that score them, step, collect."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pagedjax.devices.host_call import Caller
from pagedjax.intake.intake import Intake
from pagedjax.schedule.request import Request
from pagedjax.schedule.scheduler import Scheduler
from pagedjax.step.scores import Scores


class Scoring:
    """Scores token lists on one engine.

    A list of one token has no score, and its request is never queued.
    """

    def __init__(
        self, caller: Caller, intake: Intake, scores: Scores, scheduler: Scheduler
    ) -> None:
        self._caller, self._intake = caller, intake
        self._scores, self._scheduler = scores, scheduler

    def run(
        self, token_lists: Sequence[Sequence[int]], step: Callable[[], object]
    ) -> tuple[list[Request], list[np.ndarray]]:
        """Return the request of each list, and its scores: float32 of length len - 1.

        step: advances the engine; other threads may call the engine between two steps.
        Raises ValueError with the index of a list that cannot be scored, before any work.
        """
        with self._caller.turn():
            requests = self._intake.scorings(token_lists)
            queued = self._start(requests)
        try:
            while not all(request.is_finished for request in queued):
                step()
        finally:
            with self._caller.turn():
                arrays = self._close(requests, queued)
        return requests, arrays

    def _start(self, requests: list[Request]) -> list[Request]:
        for request in requests:
            self._intake.admit(request)
        self._scores.open(requests)
        queued = [request for request in requests if len(request.tokens) > 1]
        for request in queued:
            self._scheduler.add(request)
        return queued

    def _close(self, requests: list[Request], queued: list[Request]) -> list[np.ndarray]:
        blocks = self._scheduler.blocks
        arrays = self._scores.close(requests, blocks.block_size)
        for request in queued:
            if not request.is_finished:
                self._scheduler.abort(request)
            blocks.forget(request.namespace)  # no other request can name it
        return arrays
