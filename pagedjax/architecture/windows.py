"""Sliding windows of attention in a Hugging Face config; a model with one is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagedjax.architecture.hf_fields import boolean

DEFAULT_WINDOW = 4096  # of Hugging Face's MistralConfig and Qwen2Config without the key


def check_no_window(config: Mapping[str, Any]) -> None:
    """Raise NotImplementedError if some layer's window is smaller than the context."""
    window = _window(config)
    if window is None:
        return
    context = config.get("max_position_embeddings")
    if context is None or window < context:
        raise NotImplementedError(
            f"sliding_window={window} is smaller than the context of {context} positions, which "
            "is not supported yet; supported: no window"
        )


def _window(config: Mapping[str, Any]) -> Any:
    """The window of the layers that have one; None if no layer has."""
    window = config.get("sliding_window", DEFAULT_WINDOW)
    kinds = config.get("layer_types")
    if config.get("model_type") == "mistral":
        return window
    if config.get("model_type") == "qwen2" and boolean(config, "use_sliding_window"):
        if kinds is not None:
            return window if "sliding_attention" in kinds else None
        first = config.get("max_window_layers", 28)  # Hugging Face's default
        return window if first < config.get("num_hidden_layers", 0) else None
    return None
