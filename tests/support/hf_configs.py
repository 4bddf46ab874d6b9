"""A minimal `config.json`, and `ModelConfig`s read from changed copies of it."""

from typing import Any

from pagedjax.config import ModelConfig

BASE = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}


def from_hf(generation_config: dict[str, Any] | None = None, **changes: Any) -> ModelConfig:
    """Read the config of `BASE` updated with `changes`."""
    return ModelConfig.from_hf({**BASE, **changes}, generation_config)


def without(mapping: dict[str, Any], name: str) -> dict[str, Any]:
    """A copy of `mapping` without the key `name`."""
    return {key: value for key, value in mapping.items() if key != name}
