"""The compared implementations: each prepares for a problem, or raises the reason why not."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from bench.attention import device_timer, gather_attention, jax_attention
from bench.attention.problem import Problem
from pallas_kernels import tiles, triton_decode, triton_prefill, xla_decode, xla_prefill
from pallas_kernels.xla_walk import CPU_OPTIONS

UNROLLED = 8  # calls in an iteration of a chain


@dataclass(frozen=True)
class Where:
    """Device that runs the paths. interpret: Pallas kernels run in interpret mode."""

    device: jax.Device
    interpret: bool = False

    @property
    def on_gpu(self) -> bool:
        """Whether the device is an NVIDIA GPU."""
        return self.device.platform in ("gpu", "cuda")

    @property
    def is_hopper(self) -> bool:
        """Whether the device runs Mosaic's kernels for Hopper."""
        return (tiles.compute_capability(self.device) or (0, 0))[0] == 9


@dataclass(frozen=True)
class Prepared:
    """An implementation with its operands for one problem.

    run: (q, layer, operands) -> output of q's shape and dtype. `layer` is a traced index; with
    `by_layer`, `operands` has one entry per layer, and run gets the entry of its layer.
    """

    run: Callable[[jax.Array, Any, Any], jax.Array]
    operands: Any
    by_layer: bool = False

    @cached_property
    def compiled(self) -> Callable[..., jax.Array]:
        """`run`, compiled once, with the engine's compiler options on CPU."""
        on_cpu = jax.default_backend() == "cpu"
        return jax.jit(self.run, compiler_options=CPU_OPTIONS if on_cpu else None)

    def once(self, problem: Problem, layer: int) -> jax.Array:
        """Return the output for one layer."""
        operands = self.operands[layer] if self.by_layer else self.operands
        return self.compiled(problem.q, jnp.int32(layer), operands)

    def timed(self, problem: Problem, chained: int) -> device_timer.Timed:
        """Return a timer of calls on all layers in turn. chained: calls in one program."""
        layers = problem.layers
        each = [self.operands[n] if self.by_layer else self.operands for n in range(layers)]
        if chained == 1:
            index = [jnp.int32(n) for n in range(layers)]

            def dispatched(q: jax.Array) -> jax.Array:
                for layer in range(layers):
                    q = self.compiled(q, index[layer], each[layer])
                return q

            return device_timer.Timed(dispatched, problem.q, calls=layers)

        # A loop launches small kernels per iteration, which several calls then share.
        unrolled = max(layers, min(UNROLLED, chained // 2))
        length = max(2, chained // unrolled)

        def step(index: Any, q: jax.Array, operands: Any) -> jax.Array:
            for call in range(unrolled):
                layer = call % layers
                # Otherwise XLA could gather the pages of a constant layer once, for all calls.
                q, at = lax.optimization_barrier((q, jnp.int32(layer)))
                q = self.run(q, at, operands[layer] if self.by_layer else operands)
            return q

        program = device_timer.chain(step, length)
        return device_timer.Timed(
            lambda q: program(q, self.operands), problem.q, calls=length * unrolled
        )


Prepare = Callable[[Problem, Where], Prepared]


def ours(op: Callable[..., jax.Array], problem: Problem, **options: Any) -> Prepared:
    """Prepare a decode or prefill op with the signature of `pallas_kernels`."""
    operands = {
        "pools": (problem.k_pool, problem.v_pool),
        "batch": (problem.tables, problem.context_lens),
        "scales": {},
    }
    if problem.case.kind == "prefill":
        operands["batch"] = (*operands["batch"], problem.query_starts)
    if problem.k_scales is not None:
        operands["scales"] = {"k_scales": problem.k_scales, "v_scales": problem.v_scales}

    def run(q: jax.Array, layer: Any, operands: Any) -> jax.Array:
        return op(
            q, *operands["pools"], layer, *operands["batch"], scale=problem.scale,
            **operands["scales"], **options,
        )  # fmt: skip

    return Prepared(run, operands)


def _gather(problem: Problem, where: Where) -> Prepared:
    if problem.case.kind == "decode":
        return ours(gather_attention.paged_decode, problem)
    return ours(gather_attention.paged_prefill, problem, most_queries=max(problem.case.queries))


def _online(problem: Problem, where: Where) -> Prepared:
    decoding = problem.case.kind == "decode"
    return ours(xla_decode.paged_decode if decoding else xla_prefill.paged_prefill, problem)


def triton(problem: Problem, where: Where, chosen: Any = None) -> Prepared:
    """Prepare our Triton kernels. chosen: tiles, or None for those that serving uses."""
    _refuse_cpu(where)
    decoding = problem.case.kind == "decode"
    op = triton_decode.paged_decode if decoding else triton_prefill.paged_prefill
    described = tiles.device_of(where.device)
    return ours(op, problem, device=described, tiles=chosen, interpret=where.interpret)


def _mosaic(problem: Problem, where: Where) -> Prepared:
    if problem.case.kind != "decode":
        raise NotImplementedError("supports decode only")
    if not where.is_hopper and not where.interpret:
        raise NotImplementedError("needs a Hopper GPU")
    try:
        module = importlib.import_module("pallas_kernels.mosaic_decode")
    except ImportError as error:
        raise NotImplementedError(f"not in this build ({error})") from None
    return ours(module.paged_decode, problem, interpret=where.interpret)


def _jax_paged(problem: Problem, where: Where) -> Prepared:
    if problem.case.kind != "decode":
        raise NotImplementedError("supports decode only")
    _refuse_cpu(where)
    run, layers = jax_attention.paged_decode(problem, where.interpret)
    return Prepared(lambda q, layer, operands: run(q, operands), layers, by_layer=True)


def _cudnn(problem: Problem, where: Where) -> Prepared:
    if not where.on_gpu:
        raise NotImplementedError("needs a GPU")
    run, layers = jax_attention.dense(problem, "cudnn")
    return Prepared(lambda q, layer, operands: run(q, operands), layers, by_layer=True)


def _refuse_cpu(where: Where) -> None:
    if not where.on_gpu and not where.interpret:
        raise NotImplementedError("needs a GPU; on a CPU it is only checked in interpret mode")


PATHS: dict[str, Prepare] = {
    "xla-gather": _gather,
    "xla-online": _online,
    "triton": triton,
    "mosaic": _mosaic,
    "jax-paged": _jax_paged,
    "cudnn-dense": _cudnn,
}
INTERPRETED = ("triton", "mosaic", "jax-paged")


def with_tiles(chosen: Any) -> Prepare:
    """Return the Triton path with these tiles."""
    return partial(triton, chosen=chosen)
