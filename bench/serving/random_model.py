"""Random weights in the shapes of known models, and random prompts."""

from __future__ import annotations

import random

import jax

from pagedjax import ModelConfig, RopeScaling, init_params
from pagedjax.weights.params import Params

CONFIGS = {
    "llama-3-8b": ModelConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_layers=32, num_heads=32,
        num_kv_heads=8, head_dim=128, max_position_embeddings=8192,
        rope=RopeScaling(theta=500_000.0),
    ),
    "tiny": ModelConfig(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_layers=2, num_heads=4,
        num_kv_heads=2, head_dim=32, max_position_embeddings=2048,
    ),
}  # fmt: skip


def make_model(name: str, dtype: str, seed: int = 0) -> tuple[ModelConfig, Params]:
    """Return config and params; the params are on the first device."""
    config = CONFIGS[name]
    # unsafe_rbg, because threefry takes long for billions of numbers, on a CPU above all.
    return config, init_params(config, jax.random.key(seed, impl="unsafe_rbg"), dtype)


def prompts(config: ModelConfig, count: int, length: int, seed: int) -> list[list[int]]:
    """Return random ids, different for each seed, so that no prefix is shared."""
    draw = random.Random(seed)
    return [[draw.randrange(config.vocab_size) for _ in range(length)] for _ in range(count)]
