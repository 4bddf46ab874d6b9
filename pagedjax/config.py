"""EngineConfig: the options of an engine. Frozen, hashable, validated at construction."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields
from os import PathLike
from typing import Any

from pagedjax.architecture.model_config import ModelConfig as ModelConfig
from pagedjax.architecture.rope_scaling import RopeScaling as RopeScaling
from pagedjax.checks.values import (
    check_seed,
    finite,
    one_of,
    plain_number,
    positive_int,
)

DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_DTYPES = (*DTYPES, "int8", "fp8")
ATTENTIONS = ("auto", "xla", "pallas", "pallas_interpret", "pallas_mosaic")


@dataclass(frozen=True)
class EngineConfig:
    """Options of an engine. `None` lets the engine choose, as described for each option.

    max_model_len: most tokens of prompt and output together; None: the model's own limit.
    block_size: tokens per block of the KV pool; a power of two from 8 to 256 for Pallas.
    num_blocks: blocks of the pool. None: as many as kv_cache_bytes holds. If that is None too: on
        a GPU, `gpu_memory_utilization` of its memory minus the bytes in use and the temporaries of
        the largest step; on a CPU, enough for max_num_seqs requests of max_model_len tokens, at
        most 4 GiB.
    kv_cache_dtype: type of keys and values: "auto" (the params' type), "float32", "bfloat16",
        "float16", or "int8" and "fp8" with one scale per token and KV head.
    max_num_seqs: most requests that run at once. max_num_batched_tokens: most tokens per step;
        None: 512 on a CPU, 2048 on a GPU.
    enable_prefix_caching: keep full blocks and reuse them for equal prefixes; None: True.
    attention: "xla", "pallas" (Triton), "pallas_mosaic", "pallas_interpret"; "auto": Pallas on GPUs
        of compute capability 8.0 and up if it supports the shapes, else XLA.
    mesh: a `jax.sharding.Mesh` with an axis `tp`; None: the device that holds the params.
    seed: requests without a seed derive theirs from this one.
    compilation_cache_dir: folder for compiled programs, used by the whole process; None: JAX's own
        setting applies.
    steps_in_flight: 1 (step n+1 is scheduled before the tokens of step n are read) or 0.
    max_logprobs: largest `SamplingParams.logprobs` and `prompt_logprobs` (at most the vocabulary).
    logprobs_mode: "raw": a sampled token's log probability under the model; "processed": under the
        distribution it was drawn from, after penalties, masks, temperature and filters. Prompts
        are always scored raw.
    logits_processor: a user's JAX function (logits [R, V], context) -> logits, traced into the
        step; see `hooks.LogitsContext`. extra: the arrays it finds in `context.extra` for requests
        without `SamplingParams.extra`.
    batch_invariant: a request's tokens and log probabilities are bit-identical whatever other
        requests run, with and without prefix hits and preemption. Uses XLA attention.
    """

    max_model_len: int | None = None
    block_size: int = 16
    num_blocks: int | None = None
    gpu_memory_utilization: float = 0.9
    kv_cache_bytes: int | None = None
    kv_cache_dtype: str = "auto"
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    enable_prefix_caching: bool | None = None
    attention: str = "auto"
    mesh: Hashable | None = None
    seed: int = 0
    compilation_cache_dir: str | PathLike[str] | None = None
    steps_in_flight: int = 1
    max_logprobs: int = 20
    logprobs_mode: str = "raw"
    logits_processor: Callable[..., Any] | None = None
    extra: Mapping[str, Any] | None = field(default=None, compare=False)
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        for each in fields(self):
            object.__setattr__(self, each.name, plain_number(getattr(self, each.name)))
        positive_int("block_size", self.block_size)
        positive_int("max_num_seqs", self.max_num_seqs)
        for name in ("max_model_len", "num_blocks", "kv_cache_bytes", "max_num_batched_tokens"):
            if getattr(self, name) is not None:
                positive_int(name, getattr(self, name))
        if not 0 < finite("gpu_memory_utilization", self.gpu_memory_utilization) <= 1:
            raise ValueError(
                f"gpu_memory_utilization={self.gpu_memory_utilization} must be in (0, 1]"
            )
        one_of("kv_cache_dtype", self.kv_cache_dtype, KV_DTYPES)
        one_of("attention", self.attention, ATTENTIONS)
        if not isinstance(self.enable_prefix_caching, bool | None):
            raise ValueError(
                f"enable_prefix_caching={self.enable_prefix_caching!r} must be True, False or None"
            )
        check_seed(self.seed)
        if not isinstance(self.compilation_cache_dir, str | PathLike | None):
            raise ValueError(
                f"compilation_cache_dir={self.compilation_cache_dir!r} must be a path or None"
            )
        positive_int("max_logprobs", self.max_logprobs)
        one_of("logprobs_mode", self.logprobs_mode, ("raw", "processed"))
        if self.logits_processor is not None and not callable(self.logits_processor):
            raise ValueError(f"logits_processor={self.logits_processor!r} must be callable or None")
        if self.extra and self.logits_processor is None:
            raise ValueError("extra is only read by a logits_processor, and there is none")
        if not isinstance(self.batch_invariant, bool):
            raise ValueError(f"batch_invariant={self.batch_invariant!r} must be True or False")
        if self.batch_invariant and self.attention not in ("auto", "xla"):
            raise ValueError(
                f"batch_invariant=True with attention={self.attention!r}: the kernels for decode "
                "and for prefill round differently; supported: 'xla'"
            )
        if self.steps_in_flight not in (0, 1):
            raise ValueError(f"steps_in_flight={self.steps_in_flight} must be 0 or 1")


def check_dtype(name: str, value: str) -> str:
    """Return `value` when it names a supported data type, else raise ValueError."""
    return one_of(name, value, DTYPES)
