"""Mistral (arXiv 2310.06825): LLaMA without biases.

All layers have the same sliding window; releases since 7B v0.2 have none. GGUF files of these
models have the architecture "llama" and no window.
"""

from __future__ import annotations

from pagedjax.architecture.model_config import ModelConfig
from pagedjax.models.llama import SKIPPED_SOURCES, Biases, decoder_rules, forward, logits
from pagedjax.weights.params import ParamRule

__all__ = ["GGUF_ARCHITECTURE", "SKIPPED_SOURCES", "forward", "logits", "param_rules"]

GGUF_ARCHITECTURE = None


def param_rules(config: ModelConfig) -> tuple[ParamRule, ...]:
    """One rule per leaf of the params tree, in the order of the forward pass."""
    return decoder_rules(config, Biases())
