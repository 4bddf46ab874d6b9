"""Find the batch shapes for which a row's result is bit-identical, by trials on this device.

XLA's products on CPU give bit-identical rows for 2 to 512 rows of common widths, but its sums for
a norm differ below 8 rows; other devices differ. So the actual programs run, with the model's first
layer, on requests of several lengths: in every shape, as prompts and as decode rows.
"""

from __future__ import annotations

import dataclasses
from functools import cache

import jax
import numpy as np

from pagedjax.sampling_params import SamplingParams
from pagedjax.schedule.plan import Plan, Row
from pagedjax.schedule.request import Request
from pagedjax.step.batch import Buckets, Packer, Shape
from pagedjax.step.programs import Programs
from pagedjax.step.state import EngineState, StepConfig, make_state
from pagedjax.weights.params import Params

LEAST_ROWS = (2, 8, 16, 32, 64)
LENGTHS = (40, 64, 7, 150)  # of the trial requests, whose last tokens are computed in every shape


def invariant_buckets(
    buckets: Buckets, config: StepConfig, params: Params, block_size: int, kv_dtype: str
) -> Buckets:
    """The buckets without the shapes whose rows are so few that they round differently.

    Raises ValueError if no minimum number of rows makes all shapes agree, as for models of very
    small widths.
    """
    trial = _Trial(buckets, config, params, block_size, kv_dtype)
    bits = cache(trial.bits)
    for least in LEAST_ROWS:
        tried = dataclasses.replace(buckets, least_rows=least)
        largest = tried.shapes()[-1]
        wanted = bits(largest, largest)[0]
        wrong = [shape for shape in tried.shapes() if set(bits(shape, largest)) != {wanted}]
        if not wrong:
            return tried
    raise ValueError(
        "batch_invariant=True cannot be had with this model on this device: a row's result depends "
        f"on the shape of its step, for instance in {tuple(wrong[0])}"
    )


class _Trial:
    """Runs fixed requests on a model of one layer with a separate pool."""

    def __init__(
        self, buckets: Buckets, config: StepConfig, params: Params, block_size: int, kv_dtype: str
    ) -> None:
        model = dataclasses.replace(config.model, num_layers=1)
        self._config = dataclasses.replace(config, model=model)
        self._params = {**params, "layers": params["layers"][:1]}
        self._programs = Programs(self._config)
        self._slots, self._block_size, self._kv_dtype = buckets.max_num_seqs, block_size, kv_dtype
        lengths = LENGTHS[: buckets.max_num_seqs]
        width = -(-max(lengths) // block_size)
        self._requests = [self._request(slot, length, width) for slot, length in enumerate(lengths)]
        self._packer = Packer(buckets, len(lengths) * width, block_size, width)

    def _request(self, slot: int, length: int, width: int) -> Request:
        vocab = self._config.model.vocab_size
        tokens = [(7919 * (slot + 1) * (i + 1)) % vocab for i in range(length)]
        params = SamplingParams(top_p=0.9, logprobs=1)
        return Request(
            str(slot), tokens, length, params, length + 1, frozenset(), frozenset(), slot, slot,
            block_ids=list(range(slot * width, (slot + 1) * width)), slot=slot,
        )  # fmt: skip

    def bits(self, shape: Shape, largest: Shape) -> list[bytes]:
        """The bytes of hidden states, logits, drawn tokens and log probabilities at the requests'
        last tokens, computed in steps of `shape`: as ends of chunks if it has chunks, and as decode
        rows after a prefill in the largest shape.
        """
        found = []
        if shape.tokens:
            state, ends = self._state(), []
            for request in self._requests:
                state, end = self._chunks(state, request, len(request.tokens), shape)
                ends.append(end)
            found.append(b"".join(ends))
        state = self._state()
        for request in self._requests:
            state, _ = self._chunks(state, request, len(request.tokens) - 1, largest)
        rows = [self._row(request, len(request.tokens) - 1, 1) for request in self._requests]
        last, lengths = np.zeros((2, self._slots), np.int32)
        last[: len(rows)] = [row.request.tokens[-1] for row in rows]
        lengths[: len(rows)] = [row.start for row in rows]
        put = [jax.device_put(each, state.tokens.sharding) for each in (last, lengths)]
        state = dataclasses.replace(state, tokens=put[0], lengths=put[1])
        decoded = []
        for start in range(0, len(rows), shape.decode_rows):
            plan = Plan(rows[start : start + shape.decode_rows], [])
            state, some = self._run(state, plan, shape)
            decoded.append(some)
        return [*found, b"".join(decoded)]

    def _state(self) -> EngineState:
        return make_state(
            self._config, self._packer.num_blocks, self._block_size, self._kv_dtype, self._slots
        )

    def _chunks(
        self, state: EngineState, request: Request, count: int, shape: Shape
    ) -> tuple[EngineState, bytes]:
        """Prefill the first `count` tokens of a request; return the result of the last one."""
        end = b""
        for start in range(0, count, shape.tokens):
            row = self._row(request, start, min(shape.tokens, count - start))
            state, end = self._run(state, Plan([], [row]), shape)
        return state, end

    @staticmethod
    def _row(request: Request, start: int, count: int) -> Row:
        return Row(request, start, count, (request,))

    def _run(self, state: EngineState, plan: Plan, shape: Shape) -> tuple[EngineState, bytes]:
        batch = self._packer.pack(plan, shape)
        state, _, hidden = self._programs.forward(self._params, state, batch)
        slots = batch.logit_slots
        arrays = self._packer.sampling(plan, slots), self._packer.adjustments(plan, slots)
        drawn = self._programs.sample("logprobs", self._params, state, hidden, *arrays)
        state = dataclasses.replace(state, tokens=drawn.slot_tokens)
        logits = self._programs.logits(self._params, hidden)
        kept = [np.asarray(each)[: len(plan.rows)] for each in jax.tree.leaves(drawn.logprobs)]
        kept += [np.asarray(each)[: len(plan.rows)] for each in (hidden, logits, drawn.tokens)]
        rows = zip(*kept, strict=True)
        return state, b"".join(each.tobytes() for row in rows for each in row)
