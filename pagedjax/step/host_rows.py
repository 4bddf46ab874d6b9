"""Per-slot values and block tables that steps need, as numpy arrays on the host.

Only changed entries are updated, so that packing a step needs no Python work per token and hardly
any per row. Row M is for padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pagedjax.schedule.plan import Row
from pagedjax.schedule.request import Request

MOST = 1e30  # limit of penalties and biases; logits and counts are far below 1e8
_FLOAT32 = np.finfo(np.float32)
_INT32_MAX = 2**31 - 1


class Field(NamedTuple):
    """A per-request value, its dtype, and the value used in padding."""

    dtype: Any
    value: Callable[[Request], Any]
    padding: Any = 0


SAMPLING = {
    "num_prompt": Field(np.int32, lambda each: each.num_prompt),
    "seeds": Field(np.uint32, lambda each: each.seed),
    "samples": Field(np.uint32, lambda each: each.sample_index),
    "temperature": Field(np.float32, lambda each: _float32(each.params.temperature)),
    "top_k": Field(np.int32, lambda each: min(each.params.top_k, _INT32_MAX)),
    "top_p": Field(np.float32, lambda each: each.params.top_p, 1),
    "min_p": Field(np.float32, lambda each: each.params.min_p),
}
ADJUSTMENTS = {
    "repetition": Field(np.float32, lambda each: _factor(each.params.repetition_penalty), 1),
    "presence": Field(np.float32, lambda each: moderate(each.params.presence_penalty)),
    "frequency": Field(np.float32, lambda each: moderate(each.params.frequency_penalty)),
    "edited": Field(np.bool_, lambda each: each.edits.exist),
    "logprobs": Field(np.bool_, lambda each: each.params.logprobs is not None),
}


class HostValues:
    """The values of all fields for the request in each of `num_slots` slots."""

    def __init__(self, num_slots: int) -> None:
        self._owners: list[Request | None] = [None] * num_slots
        self._fields = {**SAMPLING, **ADJUSTMENTS}
        self._values: dict[str, Any] = {
            name: np.full(num_slots + 1, field.padding, field.dtype)
            for name, field in self._fields.items()
        }

    def update(self, requests: Sequence[Request]) -> None:
        """Store the values of the requests that are new in their slots."""
        for request in requests:
            if self._owners[request.slot] is not request:  # type: ignore[index]
                self._owners[request.slot] = request  # type: ignore[index]
                for name, field in self._fields.items():
                    self._values[name][request.slot] = field.value(request)

    def take(self, names: Sequence[str], slots: Any) -> dict[str, Any]:  # of [R] each
        """The values at `slots` [R]."""
        return {name: self._values[name][slots] for name in names}


class HostTables:
    """The block table of each slot: P = `width` entries, N in unused ones."""

    def __init__(self, num_slots: int, num_blocks: int, block_size: int, width: int) -> None:
        self._num_blocks, self._block_size = num_blocks, block_size
        self._tables: Any = np.full((num_slots + 1, width), num_blocks, np.int32)
        # Per slot: the list of blocks, its length and its last block at the last update. A request
        # gets a new list whenever it starts, so the list identifies the table's owner.
        self._known: list[tuple[list[int] | None, int, int]] = [(None, 0, -1)] * num_slots

    def update(self, rows: Sequence[Row]) -> None:
        """Update the changed entries, which begin at the first block that the row writes."""
        for request, start, _, _ in rows:
            slot, blocks = request.slot, request.block_ids
            assert slot is not None
            known, count, last = self._known[slot]
            first = min(count, start // self._block_size)
            if known is not blocks:
                first = 0
                self._tables[slot] = self._num_blocks
            elif count == len(blocks) and first >= count - 1 and blocks[-1] == last:
                continue  # the most frequent case: one more token in the same block
            self._tables[slot, first : len(blocks)] = blocks[first:]
            self._tables[slot, len(blocks) : count] = self._num_blocks
            self._known[slot] = (blocks, len(blocks), blocks[-1])

    def take(self, slots: Any) -> Any:  # [B, P]
        """The tables at `slots` [B]."""
        return self._tables[slots]


def moderate(value: float) -> float:
    """Clip a penalty or bias so that adding it repeatedly keeps float32 logits finite."""
    return min(max(value, -MOST), MOST)


def _factor(value: float) -> float:
    """Clip a factor of logits so that multiplying or dividing by it keeps them finite."""
    return min(max(value, 1 / MOST), MOST)


def _float32(temperature: float) -> float:
    """Clip to float32's normal range: infinity would give NaN, rounding to 0 would be greedy."""
    return min(max(temperature, float(_FLOAT32.tiny)), float(_FLOAT32.max)) if temperature else 0.0
