"""The compiled programs of one engine: each is compiled once per shape, before its first run.

Ahead-of-time compilation makes compilations countable, gives the temporary memory of a step before
the pool is allocated, and lets `warmup` compile without running.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from pagedjax.devices.host_call import in_own_settings
from pagedjax.devices.mesh import sharding
from pagedjax.layers.kv_cache import copy_blocks
from pagedjax.sample.penalties import Adjustments, Tables
from pagedjax.sample.sampler import SamplingArrays
from pagedjax.schedule.request import Variant
from pagedjax.step import draw, forward, score, tables
from pagedjax.step.batch import Shape, StepBatch
from pagedjax.step.draw import Drawn
from pagedjax.step.state import EngineState, StepConfig
from pagedjax.weights.params import Params
from pallas_kernels.xla_walk import CPU_OPTIONS


class Job(NamedTuple):
    """A program to compile: its name and shape, its function, its arguments or their avals."""

    key: tuple
    function: Any
    arguments: tuple


VARIANTS: tuple[Variant, ...] = get_args(Variant)


class Programs:
    """The programs of a StepConfig; each method runs one program and compiles it when needed."""

    def __init__(self, config: StepConfig) -> None:
        self._config = config
        on_cpu = config.mesh.devices.flat[0].platform == "cpu"
        self._options = CPU_OPTIONS if on_cpu else None
        self._forward = jax.jit(partial(forward.forward, config), donate_argnums=1)
        # Each program donates the slots' tokens, and "full" also the tables.
        self._sample = {
            variant: jax.jit(
                partial(draw.sample, config, variant),
                donate_argnums=(1, 6) if variant == "full" else 1,
            )
            for variant in VARIANTS
        }
        self._logits = jax.jit(partial(forward.logits_of, config))
        self._rank = jax.jit(partial(draw.rank, config), static_argnums=0)
        self._score = jax.jit(partial(score.score, config), static_argnums=0)
        self._copy = jax.jit(copy_blocks, donate_argnums=0)
        self._put = {
            "history": jax.jit(tables.put_history, donate_argnums=0),
            "edits": jax.jit(tables.put_edits, donate_argnums=0),
        }
        self._compiled: dict[tuple, jax.stages.Compiled] = {}
        self.seconds: dict[tuple, float] = {}

    @property
    def num_compilations(self) -> int:
        """The number of programs compiled so far."""
        return len(self._compiled)

    def forward(self, params: Params, state: EngineState, batch: StepBatch) -> Any:
        """See `forward.forward`. The state is donated."""
        key = ("forward", *_shape(batch))
        return self._compile(key, self._forward, params, state, batch)(params, state, batch)

    def sample(
        self,
        variant: Variant,
        params: Params,
        state: EngineState,
        hidden: Any,
        *arrays: Any,
    ) -> Drawn:
        """See `draw.sample`. The slots' tokens and the tables are donated."""
        args = (_outer(params), state.tokens, state.lengths, hidden, *arrays)
        return self._compile(_sample_key(hidden, variant), self._sample[variant], *args)(*args)

    def make_tables(
        self, num_slots: int, max_len: int, vocab_size: int, extra: dict[str, Any]
    ) -> Tables:
        """See `tables.make_tables`."""
        job = self.tables_job(num_slots, max_len, vocab_size, extra)
        return self._compile(*job[:2], *job.arguments)(*job.arguments)

    def tables_job(
        self, num_slots: int, max_len: int, vocab_size: int, extra: dict[str, Any]
    ) -> Job:
        """The job of the program that `make_tables` runs."""
        make = partial(tables.make_tables, num_slots, max_len, vocab_size)
        everywhere = sharding(self._config.mesh)
        function = jax.jit(make, out_shardings=everywhere)
        return Job(("tables",), function, (jax.device_put(extra, everywhere),))

    def put_history(self, tables: Tables, slot: int, history: Any, extra: dict[str, Any]) -> Tables:
        """See `tables.put_history`. The tables are donated."""
        return self._put_row("history", tables, slot, history, extra)

    def put_edits(self, tables: Tables, slot: int, edits: Any) -> Tables:
        """See `tables.put_edits`. The tables are donated."""
        return self._put_row("edits", tables, slot, edits)

    def _put_row(self, what: str, tables: Tables, slot: int, *rows: Any) -> Tables:
        placed = jax.device_put((np.int32(slot), *rows), sharding(self._config.mesh))
        return self._compile(("put", what), self._put[what], tables, *placed)(tables, *placed)

    def logits(self, params: Params, hidden: Any) -> jax.Array:
        """See `forward.logits_of`."""
        args = (_outer(params), hidden)
        return self._compile(("logits", hidden.shape[0]), self._logits, *args)(*args)

    def rank(self, params: Params, hidden: Any, count: int) -> Any:
        """See `draw.rank`."""
        args = (_outer(params), hidden)
        key = ("rank", count, hidden.shape[0])
        return self._compile(key, self._rank, count, *args)(*args)

    def score(self, params: Params, hidden: Any, targets: jax.Array, count: int | None) -> Any:
        """See `score.score`."""
        args = (_outer(params), hidden, targets)
        key = ("score", count, hidden.shape[0])
        return self._compile(key, self._score, count, *args)(*args)

    def copy(self, state: EngineState, sources: jax.Array, targets: jax.Array) -> EngineState:
        """See `kv_cache.copy_blocks`. The pools are donated."""
        args = (state.cache, sources, targets)
        cache = self._compile(("copy", sources.shape[0]), self._copy, *args)(*args)
        return dataclasses.replace(state, cache=cache)

    def jobs(
        self,
        params: Params,
        state: EngineState,
        batch: StepBatch,
        arrays: SamplingArrays,
        adjustments: Adjustments,
        tables: Any,  # Tables, abstract
        candidate_counts: Sequence[int] = (),
    ) -> Iterator[Job]:
        """All programs for the shape of `batch`, for `compile_all`."""
        yield Job(("forward", *_shape(batch)), self._forward, (params, state, batch))
        _, chunks, hidden = jax.eval_shape(self._forward, params, state, batch)
        slots = (_outer(params), state.tokens, state.lengths, hidden, arrays)
        more = {"logprobs": (adjustments,), "full": (adjustments, tables)}
        for variant, function in self._sample.items():
            yield Job(_sample_key(hidden, variant), function, (*slots, *more.get(variant, ())))
        for count in candidate_counts:
            yield Job(("rank", count, hidden.shape[0]), self._rank, (count, slots[0], hidden))
        if batch.tokens.size:
            targets = jax.ShapeDtypeStruct(batch.tokens.shape, batch.tokens.dtype)
            for best in (None, self._config.max_logprobs):
                key = ("score", best, chunks.shape[0])
                yield Job(key, self._score, (best, slots[0], chunks, targets))

    def other_jobs(
        self, state: EngineState, copies: Sequence[tuple[jax.Array, jax.Array]], tables: Any
    ) -> Iterator[Job]:
        """The programs that run between steps: block copies of these sizes, table writes."""
        for each in copies:
            yield Job(("copy", each[0].shape[0]), self._copy, (state.cache, *each))
        slot = jax.ShapeDtypeStruct((), jnp.int32)
        history, edits = (
            jax.ShapeDtypeStruct(each.shape[1:], each.dtype)
            for each in (tables.history, tables.edits)
        )
        extra = {
            name: jax.ShapeDtypeStruct(each.shape[1:], each.dtype)
            for name, each in tables.extra.items()
        }
        yield Job(("put", "history"), self._put["history"], (tables, slot, history, extra))
        yield Job(("put", "edits"), self._put["edits"], (tables, slot, edits))

    def compile_all(self, jobs: Iterable[Job]) -> None:
        """Compile without running, on several threads, since XLA releases the GIL."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            # JAX settings are per thread.
            compile_one = in_own_settings(self._compile)
            compiled = [pool.submit(compile_one, key, fn, *args) for key, fn, args in jobs]
        for each in compiled:
            each.result()

    def temporary_bytes(self, params: Params, state: Any, batch: StepBatch) -> int:
        """Temporary memory of a forward of this shape; `state` may be abstract."""
        compiled = self._forward.lower(params, state, batch).compile(self._options)
        memory = compiled.memory_analysis()
        return memory.temp_size_in_bytes if memory else 0

    def _compile(self, key: tuple, function: Any, *args: Any) -> jax.stages.Compiled:
        if key not in self._compiled:
            start = time.perf_counter()
            self._compiled[key] = function.lower(*args).compile(self._options)
            self.seconds[key] = time.perf_counter() - start
        return self._compiled[key]


def _shape(batch: StepBatch) -> Shape:
    return Shape(batch.decode_slots.shape[0], batch.tokens.shape[0], batch.logit_rows.shape[0])


def _sample_key(hidden: Any, variant: str) -> tuple:
    return ("sample", variant, hidden.shape[0])


def use_compilation_cache(folder: str | os.PathLike[str] | None) -> None:
    """Keep compiled programs of this whole process in `folder`; None changes nothing."""
    if folder is None:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # an already opened cache would keep its folder


def _outer(params: Params) -> Params:
    """The params without the layers, which the LM head does not read."""
    return {name: leaf for name, leaf in params.items() if name != "layers"}
