"""The rows of the slot tables that are written when requests change slots."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from pagedjax.sampling_params import SamplingParams
from pagedjax.schedule.request import Request
from pagedjax.step.programs import Programs
from pagedjax.step.slot_tables import SlotTables


class Written:
    """Programs that record the histories to write as (slot, nonzero tokens)."""

    def __init__(self) -> None:
        self.histories: list[tuple[int, list[int]]] = []

    def make_tables(self, *_: Any) -> Any:
        return SimpleNamespace()

    def put_history(self, tables: Any, slot: int, history: np.ndarray, extra: Any) -> Any:
        assert not extra
        self.histories.append((slot, history[history > 0].tolist()))
        return tables


def penalised(slot: int) -> Request:
    params = SamplingParams(repetition_penalty=1.5)
    none: frozenset[int] = frozenset()
    request = Request("r", [1, 2], 2, params, 20, none, none)
    request.slot = slot
    return request


def test_a_request_that_returns_to_a_slot_brings_its_tokens_from_other_slots() -> None:
    written = Written()
    tables = SlotTables(cast(Programs, written), 2, 20, 30, {}, always=False)
    request = penalised(slot=1)
    for slot, token in ((1, 3), (1, 4), (0, 5), (1, 6)):
        request.slot = slot
        tables.sync([request])
        request.tokens.append(token)
    assert written.histories == [(1, [1, 2]), (0, [1, 2, 3, 4]), (1, [1, 2, 3, 4, 5])]
