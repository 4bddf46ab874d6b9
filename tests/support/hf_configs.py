"""The smallest `config.json` that is read, and `ModelConfig`s of it with some values changed."""

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
    """The config of `BASE` and `changes`, which may hold further keys of a `config.json`."""
    return ModelConfig.from_hf({**BASE, **changes}, generation_config)


def without(mapping: dict[str, Any], name: str) -> dict[str, Any]:
    """A copy of `mapping` that lacks the key `name`."""
    return {key: value for key, value in mapping.items() if key != name}
