"""The shape of a model: frozen, hashable, validated when constructed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagedjax.architecture.hf_fields import (
    boolean,
    check_supported,
    drawable_eos,
    eos_ids,
    required,
    value_or,
)
from pagedjax.architecture.rope_scaling import RopeScaling
from pagedjax.architecture.windows import Windows, check_windows, layer_windows
from pagedjax.checks.values import (
    finite,
    is_int,
    positive,
    positive_int,
)


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a LLaMA-architecture model. Names follow Hugging Face; counts are `num_*`.

    Letters in shape comments: L = num_layers, E = hidden_size, H = num_heads, K = num_kv_heads,
    G = H / K, D = head_dim, F = intermediate_size, V = vocab_size.
    windows: of attention, one per layer, None for full attention; () for none at all.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    model_type: str = "llama"
    rms_norm_eps: float = 1e-6
    rope: RopeScaling = RopeScaling()
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    initializer_range: float = 0.02
    dtype: str | None = None
    windows: Windows = ()

    def __post_init__(self) -> None:
        for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads",
            "num_kv_heads", "head_dim", "max_position_embeddings",
        ):  # fmt: skip
            positive_int(name, getattr(self, name))
        positive("rms_norm_eps", self.rms_norm_eps)
        finite("initializer_range", self.initializer_range)
        if self.bos_token_id is not None and not is_int(self.bos_token_id):
            raise ValueError(f"bos_token_id={self.bos_token_id!r} must be an id or null")
        object.__setattr__(self, "eos_token_ids", eos_ids(self.eos_token_ids, self.vocab_size))
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}"
            )
        check_windows(self.windows, self.num_layers)
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even for rotary embeddings")

    @property
    def group_size(self) -> int:
        """G, the number of query heads that share one kv head."""
        return self.num_heads // self.num_kv_heads

    @classmethod
    def from_hf(
        cls, config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None
    ) -> ModelConfig:
        """Make a ModelConfig from the dict of a Hugging Face `config.json`.

        `eos_token_id` of `generation_config` takes precedence over that of `config`, as in Hugging
        Face. Raises ValueError for a missing or invalid value and NotImplementedError for an
        unsupported architecture.
        """
        check_supported(config)
        heads = positive_int("num_heads", required(config, "num_attention_heads"))
        hidden = positive_int("hidden_size", required(config, "hidden_size"))
        vocab_size = required(config, "vocab_size")
        context = value_or(config.get("max_position_embeddings"), cls.max_position_embeddings)
        eos = (generation_config or {}).get("eos_token_id")
        eos = config.get("eos_token_id") if eos is None else eos
        return cls(
            model_type=config.get("model_type") or "llama",
            vocab_size=vocab_size,
            hidden_size=hidden,
            intermediate_size=required(config, "intermediate_size"),
            num_layers=required(config, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=_kv_heads(config, heads),
            head_dim=_head_dim(config, hidden // heads),
            rms_norm_eps=value_or(config.get("rms_norm_eps"), cls.rms_norm_eps),
            rope=RopeScaling.from_hf(config),
            max_position_embeddings=context,
            windows=layer_windows(config, positive_int("max_position_embeddings", context)),
            tie_word_embeddings=boolean(config, "tie_word_embeddings"),
            attention_bias=boolean(config, "attention_bias"),
            mlp_bias=boolean(config, "mlp_bias"),
            bos_token_id=config.get("bos_token_id"),
            eos_token_ids=drawable_eos(eos, positive_int("vocab_size", vocab_size)),
            initializer_range=value_or(config.get("initializer_range"), cls.initializer_range),
            dtype=config.get("dtype") or config.get("torch_dtype"),
        )


def _kv_heads(config: Mapping[str, Any], heads: int) -> Any:
    """LLaMA has as many KV heads as query heads by default; other families' defaults differ."""
    if config.get("model_type") in (None, "llama"):
        return value_or(config.get("num_key_value_heads"), heads)
    return required(config, "num_key_value_heads")


def _head_dim(config: Mapping[str, Any], quotient: int) -> Any:
    """By default the model's width divided by its heads; Qwen3's default is another."""
    if config.get("model_type") == "qwen3":
        return required(config, "head_dim")
    return value_or(config.get("head_dim"), quotient)
