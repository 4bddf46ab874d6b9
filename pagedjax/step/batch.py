"""Convert a Plan to arrays padded to a bucket, so that every step has one of a few shapes.

Here and in `host_rows` host lists become arrays. Padding rows use slot M and block N, which are
out of range, so that their writes are dropped; -1 would wrap around.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import struct

from pagedjax.sample.penalties import Adjustments
from pagedjax.sample.sampler import SamplingArrays
from pagedjax.schedule.plan import Plan
from pagedjax.schedule.request import Request
from pagedjax.step.host_rows import ADJUSTMENTS, SAMPLING, HostTables, HostValues

_NONE = np.zeros(0, np.int32)
FEW_ROWS = 16  # decode rows and logit rows of the smaller of the two mixed shapes


@struct.dataclass
class StepBatch:
    """Inputs of one step. S = Bd + Sp tokens: those of the decode rows, then those of the chunks.

    The token and position of a decode row are read from the state, by slot. Row b of the ragged
    section has the tokens [query_starts[b], query_starts[b+1]) of that section.
    """

    decode_slots: jax.Array  # [Bd]
    decode_tables: jax.Array  # [Bd, P]
    tokens: jax.Array  # [Sp]
    positions: jax.Array  # [Sp]
    query_starts: jax.Array  # [Bp + 1]
    context_lens: jax.Array  # [Bp], including the tokens of this step
    tables: jax.Array  # [Bp, P]
    logit_rows: jax.Array  # [R], indices into the S tokens; several slots may share one
    logit_slots: jax.Array  # [R], the slots that the drawn tokens are written to


class Shape(NamedTuple):
    """The static shape of a step: rows and tokens of its sections, including padding."""

    decode_rows: int  # Bd
    tokens: int  # Sp
    logit_rows: int  # R


@dataclass(frozen=True)
class Buckets:
    """The step shapes that exist. Steps without chunks have finer row buckets than mixed steps.

    least_rows: minimum number of rows of every shape. At least 2, since with a single row XLA's
    products on CPU are slow in bfloat16 and not bit-identical to those with more rows.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    least_rows: int = 2

    @property
    def row_buckets(self) -> tuple[int, ...]:
        """2, 8, 16, 32, 48, 64, 96, 128, ..., from `least_rows` to `max_num_seqs`."""
        fine = [2, 8, 16, *(32 << n for n in range(20)), *(48 << n for n in range(20))]
        enough = [rows for rows in sorted(fine) if rows >= self.least_rows]
        return _up_to(enough, max(self.least_rows, self.max_num_seqs))

    @property
    def token_buckets(self) -> tuple[int, ...]:
        """64, 128, ..., up to `max_num_batched_tokens`."""
        return _up_to([64 << shift for shift in range(24)], self.max_num_batched_tokens)

    @property
    def copy_buckets(self) -> tuple[int, ...]:
        """Buckets for the block copies before a step: at most one per running request."""
        return _up_to([8], max(8, self.max_num_seqs))

    def mixed_rows(self, tokens: int) -> tuple[int, ...]:
        """Row buckets of a step with `tokens` chunk tokens, for decode rows and logit rows alike.

        The smaller bucket exists where padding to all rows would add a quarter or more.
        """
        most = max(self.least_rows, self.max_num_seqs)
        few = max(FEW_ROWS, self.least_rows)
        return _up_to([few] if 4 * most >= tokens else [], most)

    def shapes(self) -> list[Shape]:
        """Every shape that `fit` can return."""
        alone = [Shape(rows, 0, rows) for rows in self.row_buckets]
        return alone + [Shape(r, t, r) for t in self.token_buckets for r in self.mixed_rows(t)]

    def fit(self, plan: Plan) -> Shape:
        """The smallest shape that fits the plan."""
        rows = max(len(plan.decode), len(plan.samplers))
        tokens = sum(row.num_tokens for row in plan.chunks)
        if not tokens:
            rows = _smallest(self.row_buckets, rows)
            return Shape(rows, 0, rows)
        tokens = _smallest(self.token_buckets, tokens)
        rows = _smallest(self.mixed_rows(tokens), rows)
        return Shape(rows, tokens, rows)

    def ragged_rows(self, tokens: int) -> int:
        """Bp, the maximum number of chunks in a ragged section of `tokens` tokens."""
        return min(self.max_num_seqs, tokens)


class Packer:
    """Builds StepBatches and SamplingArrays for one engine.

    num_blocks N and num_slots M are the out-of-range values of padding; table_width is P. The
    results are numpy arrays: the compiled program transfers them faster than `device_put`.
    """

    def __init__(
        self, buckets: Buckets, num_blocks: int, block_size: int, table_width: int
    ) -> None:
        self.buckets = buckets
        self.num_blocks = num_blocks
        self._values = HostValues(buckets.max_num_seqs)
        self._tables = HostTables(buckets.max_num_seqs, num_blocks, block_size, table_width)

    def pack(self, plan: Plan, shape: Shape) -> StepBatch:
        """Build the arrays of `plan`, padded to `shape`."""
        chunks = plan.chunks
        rows = self.buckets.ragged_rows(shape.tokens)
        ends = np.cumsum([row.num_tokens for row in chunks], dtype=np.int32)
        starts: Any = np.full(rows + 1, ends[-1] if chunks else 0, np.int32)
        starts[: len(chunks)] = ends - [row.num_tokens for row in chunks]
        tokens = [row.request.tokens[row.start : row.end] for row in chunks]
        positions = [np.arange(row.start, row.end, dtype=np.int32) for row in chunks]
        decode_slots = self._slots([row.request for row in plan.decode], shape.decode_rows)
        logit_slots = decode_slots  # if all rows are decode rows, which all draw
        if chunks or len(plan.samplers) != len(plan.decode):
            logit_slots = self._slots(plan.samplers, shape.logit_rows)
        self._tables.update(plan.rows)
        return StepBatch(
            decode_slots=decode_slots,
            decode_tables=self._tables.take(decode_slots),
            tokens=_joined(tokens, shape.tokens),
            positions=_padded(np.concatenate([_NONE, *positions]), shape.tokens),
            query_starts=starts,
            context_lens=_padded([row.end for row in chunks], rows),
            tables=self._tables.take(self._slots([row.request for row in chunks], rows)),
            logit_rows=_padded(self._logit_rows(plan, shape, ends), shape.logit_rows),
            logit_slots=logit_slots,
        )

    def sampling(self, plan: Plan, slots: Any) -> SamplingArrays:
        """The sampling parameters of the plan's samplers. slots: the batch's `logit_slots`."""
        self._values.update(plan.samplers)
        return SamplingArrays(slots=slots, **self._values.take(tuple(SAMPLING), slots))

    def adjustments(self, plan: Plan, slots: Any) -> Adjustments:
        """The remaining parameters of the samplers, in the same order as in `sampling`."""
        self._values.update(plan.samplers)
        return Adjustments(**self._values.take(tuple(ADJUSTMENTS), slots))

    def targets(self, plan: Plan, shape: Shape) -> Any:  # [Sp]
        """The token that follows each token of the chunks, for scoring; 0 if it is not known."""
        pieces = []
        for row in plan.chunks:
            known = row.request.tokens[row.start + 1 : row.end + 1]
            pieces.append(known + [0] * (row.num_tokens - len(known)))
        return _joined(pieces, shape.tokens)

    def copies(self, plan: Plan) -> tuple[Any, Any]:  # [C], [C]
        """Sources and targets of the plan's block copies."""
        size = _smallest(self.buckets.copy_buckets, len(plan.copies))
        sources, targets = zip(*plan.copies, strict=True) if plan.copies else ((), ())
        return _padded(sources, size), _padded(targets, size, fill=self.num_blocks)

    @staticmethod
    def _logit_rows(plan: Plan, shape: Shape, ends: np.ndarray) -> list[int]:
        """The index of the token whose logits each sampler reads."""
        tokens = [*range(len(plan.decode)), *(shape.decode_rows + int(end) - 1 for end in ends)]
        return [token for token, row in zip(tokens, plan.rows, strict=True) for _ in row.samples]

    def _slots(self, requests: Sequence[Request], size: int) -> Any:  # [size]
        slots = [request.slot for request in requests]
        return _padded(slots, size, fill=self.buckets.max_num_seqs)


def _padded(
    values: Any, size: int, dtype: np.typing.DTypeLike = np.int32, fill: float = 0
) -> Any:  # [size]
    array = np.full(size, fill, dtype)
    array[: len(values)] = values
    return array


def _joined(pieces: Sequence[Sequence[int]], size: int) -> Any:  # [size]
    return _padded(list(chain.from_iterable(pieces)), size)


def _smallest(buckets: Sequence[int], least: int) -> int:
    return buckets[bisect.bisect_left(buckets, least)]


def _up_to(buckets: Sequence[int], most: int) -> tuple[int, ...]:
    """The buckets smaller than `most`, and `most` itself."""
    return (*(bucket for bucket in buckets if bucket < most), most)
