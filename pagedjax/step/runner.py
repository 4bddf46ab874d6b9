"""The device side of an engine: params, state and compiled programs; plans in, arrays out.

It dispatches without waiting: it returns device arrays that the step loop reads later.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from pagedjax import models
from pagedjax.architecture.model_config import ModelConfig
from pagedjax.config import EngineConfig
from pagedjax.devices.host_call import in_own_settings
from pagedjax.devices.mesh import make_mesh
from pagedjax.outputs import CompileReport
from pagedjax.sample.hooks import check_processor
from pagedjax.schedule.plan import Plan
from pagedjax.schedule.request import Request, Variant
from pagedjax.step.batch import Buckets, Packer
from pagedjax.step.draw import Drawn
from pagedjax.step.in_flight import InFlight
from pagedjax.step.invariance import invariant_buckets
from pagedjax.step.pool import allocate_state, pool_blocks
from pagedjax.step.programs import VARIANTS, Job, Programs, use_compilation_cache
from pagedjax.step.resolved_options import settle
from pagedjax.step.slot_tables import SlotTables
from pagedjax.step.state import EngineState, StepConfig
from pagedjax.weights.leaves import check_alive, check_arrays, device_of, dtype_of, placed
from pagedjax.weights.params import Params, check_params, flatten_tree


class Runner:
    """Runs plans on the pool of one mesh.

    num_blocks: N of the pool. buckets: the shapes that steps are padded to. given_params: the tree
    as the user gave it. params: the same leaves as programs take them, see `leaves.placed`.
    """

    @in_own_settings
    def __init__(self, model: ModelConfig, params: Params, config: EngineConfig) -> None:
        check_arrays(params)
        check_params(models.family(model.model_type).param_rules(model), params)
        use_compilation_cache(config.compilation_cache_dir)
        mesh = make_mesh(config.mesh, device_of(params))  # type: ignore[arg-type]
        self.replace_params(params, mesh)
        settled = settle(config, model, dtype_of(params), mesh.devices.flat[0])
        self.max_model_len, self._kv_dtype = settled.max_model_len, settled.kv_dtype
        budget = settled.token_budget
        # M: every running request gets at least one token of the budget per step.
        self.buckets = Buckets(min(config.max_num_seqs, budget), budget)
        self._config = config
        self._step_config = StepConfig(
            model, mesh, settled.implementation, min(config.max_logprobs, model.vocab_size),
            config.logprobs_mode == "processed", config.logits_processor, config.batch_invariant,
        )  # fmt: skip
        if config.batch_invariant:
            self.buckets = invariant_buckets(
                self.buckets, self._step_config, self.params, config.block_size, self._kv_dtype
            )
        self._programs = Programs(self._step_config)
        self._tables = self._make_tables()
        self.num_blocks = pool_blocks(
            config, self._step_config, self.max_model_len, self._kv_dtype, self.temporary_bytes
        )
        self._packer = self._make_packer(self.num_blocks)
        self._state = self._make_state(self.num_blocks)

    @in_own_settings
    def replace_params(self, params: Params, mesh: Mesh | None = None) -> None:
        """Use other weights, starting with the next step."""
        self.params: Params = placed(params, mesh or self._step_config.mesh)
        self.given_params = params
        self._leaves = list(flatten_tree(params).values())

    def check_alive(self) -> None:
        """See `leaves.check_alive`; called before every step, so it walks no tree."""
        if any(leaf.is_deleted() for leaf in self._leaves):
            check_alive(self.given_params)

    @property
    def description(self) -> str:
        """A short text: the params' dtype, device, pool and attention."""
        return (
            f"{dtype_of(self.params)} on {self.device}, {self.num_blocks} blocks of "
            f"{self._config.block_size} {self._kv_dtype}, attention "
            f"{self._step_config.implementation!r}"
        )

    @property
    def token_budget(self) -> int:
        """Most tokens of a step."""
        return self.buckets.max_num_batched_tokens

    @property
    def device(self) -> jax.Device:
        """The device that results are read from."""
        return self._step_config.mesh.devices.flat[0]

    @property
    def num_compilations(self) -> int:
        """Programs compiled so far."""
        return self._programs.num_compilations

    @property
    def compiled(self) -> list[str]:
        """Names and shapes of the programs compiled so far, in order."""
        return [" ".join(map(str, key)) for key in self._programs.seconds]

    @in_own_settings
    def dispatch(self, plan: Plan) -> InFlight:
        """Dispatch a step and return without waiting for it."""
        shape = self.buckets.fit(plan)
        batch = self._packer.pack(plan, shape)
        if plan.copies:
            self._state = self._programs.copy(self._state, *self._packer.copies(plan))
        self._state, chunk_hidden, hidden = self._programs.forward(self.params, self._state, batch)
        tokens = scores = None
        samplers = plan.samplers
        logprobs = None
        if samplers:
            drawn = self._sample(plan, batch.logit_slots, hidden)
            self._state = dataclasses.replace(self._state, tokens=drawn.slot_tokens)
            tokens, logprobs = drawn.tokens, drawn.logprobs
        if any(row.request.scores_prompt for row in plan.chunks):
            targets = self._packer.targets(plan, shape)
            listed = any(row.request.lists_prompt for row in plan.chunks)
            best = self._step_config.max_logprobs if listed else None
            scores = self._programs.score(self.params, chunk_hidden, targets, best)
        count = max((request.num_candidates for request in samplers), default=0)
        ranked = self._programs.rank(self.params, hidden, count) if count else None
        read_later = jax.tree.leaves((logprobs, tokens, scores, ranked))
        for each in read_later:
            each.copy_to_host_async()
        last = read_later[-1] if read_later else hidden
        padded = shape.decode_rows + shape.tokens
        return InFlight(plan, padded, last, tokens, scores, ranked, logprobs)

    def _sample(self, plan: Plan, slots: Any, hidden: jax.Array) -> Drawn:
        """Draw tokens with the smallest sampling program that supports every request."""
        requests = plan.samplers
        arrays: list[Any] = [self._packer.sampling(plan, slots)]
        variant = self._variant(requests)
        if variant in ("logprobs", "full"):
            arrays.append(self._packer.adjustments(plan, slots))
        if variant == "full":
            self._tables.sync(requests)
            arrays.append(self._tables.arrays)
        drawn = self._programs.sample(variant, self.params, self._state, hidden, *arrays)
        if drawn.tables is not None:
            self._tables.arrays = drawn.tables
        return drawn

    def _variant(self, requests: Sequence[Request]) -> Variant:
        if self._step_config.processor:
            return "full"
        wanted = {request.variant for request in requests}
        return next(each for each in reversed(VARIANTS) if each in wanted)

    @in_own_settings
    def recover(self) -> None:
        """After a failed dispatch: make an empty state if the old one was donated and lost."""
        self._tables.reset()
        if any(leaf.is_deleted() for leaf in jax.tree.leaves(self._state)):
            for leaf in jax.tree.leaves(self._state):  # the error's traceback may still refer to it
                leaf.delete()
            self._state = self._make_state(self.num_blocks)

    @contextmanager
    def assert_no_compilation(self) -> Iterator[None]:
        """Raise AssertionError if anything is compiled within the block."""
        before = self._programs.num_compilations
        yield
        if news := self.compiled[before:]:
            raise AssertionError(f"compiled: {', '.join(news)}; call warmup() first")

    @in_own_settings
    def warmup(self, candidate_counts: Sequence[int] = ()) -> CompileReport:
        """Compile every shape that `dispatch` can need, without running one.

        candidate_counts: values of `Request.num_candidates` to compile for as well.
        """
        start = time.perf_counter()
        before = self._programs.num_compilations
        self._programs.compile_all(self._jobs(candidate_counts))
        return CompileReport(
            shapes=tuple(self.compiled[before:]),
            seconds=tuple(self._programs.seconds.values())[before:],
            total_seconds=time.perf_counter() - start,
        )

    def _jobs(self, candidate_counts: Sequence[int]) -> Iterator[Job]:
        empty, packer, tables = Plan([], []), self._packer, self._tables.shapes()
        for shape in self.buckets.shapes():
            batch = packer.pack(empty, shape)
            slots = batch.logit_slots
            arrays = packer.sampling(empty, slots), packer.adjustments(empty, slots)
            yield from self._programs.jobs(
                self.params, self._state, batch, *arrays, tables, candidate_counts
            )
        copies = [
            packer.copies(Plan([], [], [(self.num_blocks, self.num_blocks)] * size))
            for size in self.buckets.copy_buckets
        ]
        yield from self._programs.other_jobs(self._state, copies, tables)
        yield self._tables.job()

    def _make_state(self, num_blocks: int) -> EngineState:
        return allocate_state(
            self._step_config, num_blocks, self._config.block_size, self._kv_dtype,
            self.buckets.max_num_seqs,
        )  # fmt: skip

    def _make_tables(self) -> SlotTables:
        config, vocab_size = self._config, self._step_config.model.vocab_size
        extra = {name: np.array(each) for name, each in (config.extra or {}).items()}
        if config.logits_processor is not None:
            check_processor(config.logits_processor, vocab_size, self.max_model_len, extra)
        return SlotTables(
            self._programs, self.buckets.max_num_seqs, self.max_model_len, vocab_size, extra,
            always=config.logits_processor is not None,
        )  # fmt: skip

    def _make_packer(self, num_blocks: int) -> Packer:
        width = -(-self.max_model_len // self._config.block_size)
        return Packer(self.buckets, num_blocks, self._config.block_size, width)

    def temporary_bytes(self) -> int:
        """Temporary memory of the largest step, which does not depend on the size of the pool."""
        some: Any = 2
        batch = self._make_packer(some).pack(Plan([], []), self.buckets.shapes()[-1])
        state = jax.eval_shape(partial(self._make_state, some))
        return self._programs.temporary_bytes(self.params, state, batch)
