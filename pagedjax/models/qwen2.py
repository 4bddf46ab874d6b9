"""Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115): LLaMA with biases on queries, keys and values.

The params tree is that of `llama` with `qkv_bias` in every layer and no other bias.
"""

from __future__ import annotations

from pagedjax.architecture.model_config import ModelConfig
from pagedjax.models.llama import SKIPPED_SOURCES, Biases, decoder_rules, forward, logits
from pagedjax.weights.params import ParamRule

__all__ = ["GGUF_ARCHITECTURE", "SKIPPED_SOURCES", "forward", "logits", "param_rules"]

GGUF_ARCHITECTURE = None  # its pre-tokenizer is not supported yet


def param_rules(config: ModelConfig) -> tuple[ParamRule, ...]:
    """One rule per leaf of the params tree, in the order of the forward pass."""
    return decoder_rules(config, Biases(qkv=True))
