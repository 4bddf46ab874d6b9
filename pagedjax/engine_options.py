"""EngineConfig's fields as keyword arguments that editors and type checkers know."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields
from os import PathLike
from typing import Any, TypedDict

from pagedjax.config import EngineConfig


class EngineOptions(TypedDict, total=False):
    """The fields of EngineConfig, each with its type; see there for what they mean."""

    max_model_len: int | None
    block_size: int
    num_blocks: int | None
    gpu_memory_utilization: float
    kv_cache_bytes: int | None
    kv_cache_dtype: str
    max_num_seqs: int
    max_num_batched_tokens: int | None
    enable_prefix_caching: bool | None
    attention: str
    mesh: Hashable | None
    seed: int
    compilation_cache_dir: str | PathLike[str] | None
    steps_in_flight: int
    max_logprobs: int
    logprobs_mode: str
    logits_processor: Callable[..., Any] | None
    extra: Mapping[str, Any] | None
    batch_invariant: bool


def engine_config(options: EngineOptions) -> EngineConfig:
    """The config of these options. TypeError names those that there are not."""
    known = [each.name for each in fields(EngineConfig)]
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise TypeError(f"unknown option {', '.join(unknown)}; options: {', '.join(known)}")
    return EngineConfig(**options)
