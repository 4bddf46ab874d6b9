"""The rotary embedding parameters of a model's config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagedjax.architecture.hf_fields import value_or
from pagedjax.checks.values import one_of, positive, positive_int

ORIGINAL = "original_max_position_embeddings"
# Keys of each type in a Hugging Face config besides NAMES: those it needs, and optional ones.
NEEDED: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL),
    "yarn": ("factor",),
}
OPTIONAL = {
    "yarn": (
        ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
        "truncate",
    ),
}  # fmt: skip
NAMES = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
ROPE_TYPES = tuple(NEEDED)


@dataclass(frozen=True)
class RopeScaling:
    """Rotary embedding parameters (RoFormer, arXiv 2104.09864).

    theta: base of the geometric series of wavelengths.
    rope_type: "default"; "linear", which divides all frequencies by `factor`; "llama3" (arXiv
        2407.21783), which divides the low frequencies by `factor` and blends between
        `low_freq_factor` and `high_freq_factor` wavelengths per original context; "yarn" (arXiv
        2309.00071), which divides frequencies of fewer than `beta_slow` turns per original context
        by `factor`, keeps those of more than `beta_fast`, and is linear in the dimension between.
    truncate: of yarn: round the ends of the linear part to whole dimensions.
    attention_factor: multiplies cosines and sines, so scores get its square.
    """

    theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        one_of("rope_type", self.rope_type, ROPE_TYPES)
        for name in ("theta", "factor", "attention_factor"):
            positive(name, getattr(self, name))
        positive_int(ORIGINAL, self.original_max_position_embeddings)
        if self.rope_type == "llama3":
            self._check_order("low_freq_factor", "high_freq_factor")
        if self.rope_type == "yarn":
            self._check_order("beta_slow", "beta_fast")
            if not isinstance(self.truncate, bool):
                raise ValueError(f"truncate={self.truncate!r} must be True or False")

    def _check_order(self, low: str, high: str) -> None:
        least = positive(low, getattr(self, low))
        if positive(high, getattr(self, high)) <= least:
            raise ValueError(f"{high}={getattr(self, high)} must be above {low}={least}")

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> RopeScaling:
        """Read the nested `rope_parameters` or `rope_scaling`, and `rope_theta` in or beside it."""
        nested = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
        rope_type = nested.get("rope_type") or nested.get("type") or "default"
        if rope_type not in ROPE_TYPES:
            raise NotImplementedError(
                f"rope type {rope_type!r} is not supported yet; supported: {', '.join(ROPE_TYPES)}"
            )
        _check_keys(rope_type, nested)
        for source in (nested, config):
            if source.get("partial_rotary_factor") not in (None, 1, 1.0):
                raise NotImplementedError(
                    f"partial_rotary_factor={source['partial_rotary_factor']} is not supported; "
                    "a LLaMA rotates the whole head"
                )
        theta = value_or(value_or(nested.get("rope_theta"), config.get("rope_theta")), cls.theta)
        theta = positive("rope_theta", theta)
        if rope_type == "yarn":
            return _yarn(theta, nested, config)
        values = {name: positive(name, nested[name]) for name in NEEDED[rope_type]}
        if ORIGINAL in values:
            values[ORIGINAL] = int(values[ORIGINAL])
        return cls(theta, rope_type, **values)  # type: ignore[arg-type]


def _check_keys(rope_type: str, nested: Mapping[str, Any]) -> None:
    """Raise for a key that would change the frequencies in a way that is not known."""
    given = {name for name, value in nested.items() if value is not None}
    known = {*NAMES, *NEEDED[rope_type], *OPTIONAL.get(rope_type, ())}
    # Configs of "default" may keep the factors of a scaling that is off.
    unknown = given - known - ({"factor"} if nested.get("factor") in (1, 1.0) else set())
    if unknown:
        raise NotImplementedError(
            f"the parameters of rope type {rope_type!r} have {', '.join(sorted(unknown))}, which "
            f"is not supported; supported: {', '.join(sorted(known))}"
        )
    if missing := [name for name in NEEDED[rope_type] if name not in given]:
        raise ValueError(f"rope type {rope_type!r} needs {', '.join(missing)} in its parameters")


def _yarn(theta: float, nested: Mapping[str, Any], config: Mapping[str, Any]) -> RopeScaling:
    """Parameters of "yarn", with the attention factor that Hugging Face derives."""
    default = RopeScaling()
    factor = positive("factor", nested["factor"])
    original = value_or(config.get(ORIGINAL), nested.get(ORIGINAL))
    original = value_or(original, config.get("max_position_embeddings"))
    given = nested.get("attention_factor")
    attention_factor = _attention_factor(factor, nested) if given is None else given
    return RopeScaling(
        theta,
        "yarn",
        factor,
        original_max_position_embeddings=int(positive(ORIGINAL, value_or(original, 2048))),
        beta_fast=positive("beta_fast", nested.get("beta_fast") or default.beta_fast),
        beta_slow=positive("beta_slow", nested.get("beta_slow") or default.beta_slow),
        truncate=value_or(nested.get("truncate"), default.truncate),
        attention_factor=positive("attention_factor", attention_factor),
    )


def _attention_factor(factor: float, nested: Mapping[str, Any]) -> float:
    """0.1 ln(factor) + 1 (YaRN, section 3.4), or the quotient of two with `mscale` and its peer."""

    def scale(times: float) -> float:
        return 0.1 * times * math.log(factor) + 1 if factor > 1 else 1.0

    if (mscale := nested.get("mscale")) and (of_all := nested.get("mscale_all_dim")):
        return scale(positive("mscale", mscale)) / scale(positive("mscale_all_dim", of_all))
    return scale(1.0)
