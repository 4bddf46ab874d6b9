"""Sliding windows of attention, read from a Hugging Face config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pagedjax.architecture.hf_fields import boolean, required, value_or
from pagedjax.checks.values import positive_int

Windows = tuple[int | None, ...]

DEFAULT_WINDOW = 4096  # in Hugging Face's configs of these families without the key
DEFAULT_FULL_LAYERS = 28  # `max_window_layers` of Qwen's configs without the key
KINDS = {"full_attention": False, "sliding_attention": True}


def layer_windows(config: Mapping[str, Any], context: int) -> Windows:
    """The window of each layer, None for full attention; () if all layers have full attention.

    A query attends to its own key and the window - 1 keys before it. A window that covers the
    `context`, the most positions of the model, is none.
    """
    count = positive_int("num_hidden_layers", required(config, "num_hidden_layers"))
    is_windowed = _windowed_layers(config, count)
    if not any(is_windowed):
        return ()
    window = positive_int("sliding_window", config.get("sliding_window", DEFAULT_WINDOW))
    return tuple(window if each else None for each in is_windowed) if window < context else ()


def check_windows(windows: Sequence[Any], num_layers: int) -> None:
    """Raise ValueError unless there is none or one window or None per layer."""
    if windows and len(windows) != num_layers:
        raise ValueError(f"windows={windows!r} must have one entry per layer, {num_layers}")
    for each in windows:
        if each is not None:
            positive_int("windows", each)


def _windowed_layers(config: Mapping[str, Any], count: int) -> list[bool]:
    family, window = config.get("model_type"), config.get("sliding_window", DEFAULT_WINDOW)
    if window is None:
        return [False] * count
    if family == "mistral":
        return [True] * count
    if family not in ("qwen2", "qwen3") or not boolean(config, "use_sliding_window"):
        return [False] * count
    kinds = config.get("layer_types")
    if kinds is None:
        full = value_or(config.get("max_window_layers"), DEFAULT_FULL_LAYERS)
        return [layer >= full for layer in range(count)]
    if not isinstance(kinds, list | tuple) or len(kinds) != count or not set(kinds) <= set(KINDS):
        raise ValueError(
            f"layer_types={kinds!r} must have one of {', '.join(map(repr, KINDS))} per layer, "
            f"{count} in all"
        )
    return [KINDS[each] for each in kinds]
