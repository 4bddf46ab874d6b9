"""Per-slot device arrays for penalties, biases and user functions, allocated on first use.

A slot's rows are written when a request that needs them first draws in that slot. Later tokens are
appended to the history by the sample program, since the host may not have read them yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pagedjax.sample.penalties import FORBIDDEN, NOT_ALLOWED, Tables
from pagedjax.schedule.request import Request
from pagedjax.step.host_rows import moderate
from pagedjax.step.programs import Job, Programs


class SlotTables:
    """The tables of one engine and the request that owns each row.

    num_slots M, max_len X, vocab_size V.
    extra: the user arrays' default values, which `SamplingParams.extra` overrides.
    always: every request needs its rows, because a user function reads them.
    """

    def __init__(
        self,
        programs: Programs,
        num_slots: int,
        max_len: int,
        vocab_size: int,
        extra: Mapping[str, np.ndarray],
        always: bool,
    ) -> None:
        self._programs = programs
        self._shape = (num_slots, max_len, vocab_size)
        self._extra = dict(extra)
        self._always = always
        self._arrays: Tables | None = None
        self._owners: list[Request | None] = [None] * num_slots
        self._forbidden: list[frozenset[int] | None] = [None] * num_slots

    @property
    def arrays(self) -> Tables:
        """The device arrays, allocated on first use."""
        if self._arrays is None:
            self._arrays = self._programs.make_tables(*self._shape, self._extra)
        return self._arrays

    @arrays.setter
    def arrays(self, updated: Tables) -> None:
        self._arrays = updated

    def shapes(self) -> Any:
        """The arrays, or their avals if they are not allocated, for compilation."""
        job = self.job()
        return self._arrays or jax.eval_shape(job.function, *job.arguments)

    def job(self) -> Job:
        """The job of the program that allocates the arrays."""
        return self._programs.tables_job(*self._shape, self._extra)

    def reset(self) -> None:
        """Drop all arrays and owners, after a failed step."""
        self._arrays = None
        self._owners = [None] * len(self._owners)

    def sync(self, requests: Sequence[Request]) -> None:
        """Update the rows of the requests that draw next."""
        for request in requests:
            slot = request.slot
            assert slot is not None
            if self._owners[slot] is not request:
                # A slot that it owned before lacks the tokens that it has drawn since.
                self._owners = [None if each is request else each for each in self._owners]
                # The draw of any request writes to the slot's history.
                self._owners[slot] = request if self._needs_rows(request) else None
                self._forbidden[slot] = None
                if self._owners[slot] is request:
                    self._write_history(request, slot)
            if request.edits.exist:
                self._write_edits(request, slot)

    def _needs_rows(self, request: Request) -> bool:
        return self._always or request.is_adjusted

    def _write_history(self, request: Request, slot: int) -> None:
        assert request.num_pending <= 1, "a token that the host has not read would be lost"
        history = np.zeros(self._shape[1], np.int32)
        history[: len(request.tokens)] = request.tokens
        given = request.params.extra or {}
        extra = {name: given.get(name, default) for name, default in self._extra.items()}
        self.arrays = self._programs.put_history(self.arrays, slot, history, extra)

    def _write_edits(self, request: Request, slot: int) -> None:
        """Write the edits if they changed: forbidden ids depend on the output position."""
        output = request.num_tokens - 1 - request.num_prompt  # before this draw
        watched = max(request.num_prompt, len(request.tokens) - request.edits.num_watched)
        forbidden = request.edits.forbidden(request.tokens[watched:], output)
        if forbidden == self._forbidden[slot]:
            return
        self._forbidden[slot] = forbidden
        row: Any = np.zeros(self._shape[2], np.float32)
        for token, bias in request.edits.bias.items():
            row[token] = moderate(bias)
        row[list(forbidden)] = FORBIDDEN
        if request.edits.allowed is not None:
            others = np.ones(self._shape[2], bool)
            others[list(request.edits.allowed)] = False
            row[others] = NOT_ALLOWED
        self.arrays = self._programs.put_edits(self.arrays, slot, row)
