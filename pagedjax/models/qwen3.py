"""Qwen3 (arXiv 2505.09388): LLaMA with RMS norms of queries and keys, per head and before RoPE.

The params tree is that of `llama` with `qk_norm [2,D]` (of queries, of keys) in every layer.
"""

from __future__ import annotations

import numpy as np
from jax.sharding import PartitionSpec as P

from pagedjax.architecture.model_config import ModelConfig
from pagedjax.models.llama import SKIPPED_SOURCES, Biases, decoder_rules, forward, logits
from pagedjax.weights.params import ParamRule

__all__ = ["GGUF_ARCHITECTURE", "SKIPPED_SOURCES", "forward", "logits", "param_rules"]

GGUF_ARCHITECTURE = None  # its pre-tokenizer is not supported yet


def param_rules(config: ModelConfig) -> tuple[ParamRule, ...]:
    """One rule per leaf of the params tree, in the order of the forward pass."""
    biases = Biases(config.attention_bias, config.attention_bias)
    norms = tuple(_norms(config, layer) for layer in range(config.num_layers))
    return decoder_rules(config, biases) + norms


def _norms(config: ModelConfig, layer: int) -> ParamRule:
    return ParamRule(
        path=("layers", layer, "qk_norm"),
        shape=(2, config.head_dim),
        sources=tuple(f"model.layers.{layer}.self_attn.{name}_norm.weight" for name in "qk"),
        source_shapes=((config.head_dim,),) * 2,
        assemble=np.stack,
        spec=P(),
        kind="norm",
    )
