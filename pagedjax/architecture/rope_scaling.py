"""The rotary embedding parameters of a model's config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagedjax.architecture.hf_fields import value_or
from pagedjax.checks.values import (
    one_of,
    positive,
    positive_int,
)

ROPE_TYPES = ("default", "llama3")


@dataclass(frozen=True)
class RopeScaling:
    """Rotary embedding parameters (RoFormer, arXiv 2104.09864; `llama3`: arXiv 2407.21783).

    theta: base of the geometric series of wavelengths.
    rope_type: "default", or "llama3", which divides the low frequencies by `factor` and blends
        between `low_freq_factor` and `high_freq_factor` wavelengths per original context.
    """

    theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self) -> None:
        one_of("rope_type", self.rope_type, ROPE_TYPES)
        positive("theta", self.theta)
        positive("factor", self.factor)
        positive_int("original_max_position_embeddings", self.original_max_position_embeddings)
        if self.rope_type == "llama3":
            low = positive("low_freq_factor", self.low_freq_factor)
            if positive("high_freq_factor", self.high_freq_factor) <= low:
                raise ValueError(
                    f"high_freq_factor={self.high_freq_factor} must be above "
                    f"low_freq_factor={self.low_freq_factor}"
                )

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> RopeScaling:
        """Read the nested `rope_parameters` or `rope_scaling`, and `rope_theta` in or beside it."""
        nested = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
        rope_type = nested.get("rope_type") or nested.get("type") or "default"
        if rope_type not in ROPE_TYPES:
            raise NotImplementedError(
                f"rope type {rope_type!r} is not supported yet; supported: {', '.join(ROPE_TYPES)}"
            )
        for source in (nested, config):
            if source.get("partial_rotary_factor") not in (None, 1, 1.0):
                raise NotImplementedError(
                    f"partial_rotary_factor={source['partial_rotary_factor']} is not supported; "
                    "a LLaMA rotates the whole head"
                )
        theta = value_or(value_or(nested.get("rope_theta"), config.get("rope_theta")), cls.theta)
        if rope_type == "default":
            return cls(theta=positive("rope_theta", theta))
        required = (
            "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
        )  # fmt: skip
        missing = [name for name in required if nested.get(name) is None]
        if missing:
            raise ValueError(f"rope type 'llama3' needs {', '.join(missing)} in its parameters")
        factor, low, high, original = (positive(name, nested[name]) for name in required)
        return cls(positive("rope_theta", theta), rope_type, factor, low, high, int(original))
