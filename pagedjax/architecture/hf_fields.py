"""Checked access to the fields of a Hugging Face `config.json`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from pagedjax.checks.values import (
    is_int,
    plain_list,
    plain_number,
)


def check_supported(config: Mapping[str, Any]) -> None:
    """Raise NotImplementedError for a field value that no family implements."""
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise NotImplementedError(
            f"quantization_config with quant_method={method!r} cannot be read; "
            "convert an unquantised checkpoint, or a GGUF file"
        )
    if config.get("hidden_act") not in (None, "silu", "swish"):
        raise NotImplementedError(f"hidden_act={config['hidden_act']!r}; supported: 'silu'")


def required(config: Mapping[str, Any], name: str) -> Any:
    """The value of a field; raises ValueError if it is missing or null."""
    if config.get(name) is None:
        raise ValueError(f"the model's config has no {name!r}")
    return config[name]


def value_or(value: Any, default: Any) -> Any:
    """`value`, or `default` if it is None."""
    return default if value is None else value


def eos_ids(given: Any, vocab_size: int) -> tuple[int, ...]:
    """Convert None, an id or a list of ids to a tuple; ValueError for ids not in the vocabulary."""
    ids = () if given is None else plain_list([given] if is_int(plain_number(given)) else given)
    if not isinstance(ids, list | tuple) or not all(
        is_int(each) and 0 <= each < vocab_size for each in ids
    ):
        raise ValueError(
            f"eos_token_id={given!r} must be an id from 0 to {vocab_size - 1} (the last of the "
            "vocabulary), a list of such ids, or null"
        )
    return tuple(ids)


def drawable_eos(given: Any, vocab_size: int) -> Any:
    """The `eos_token_id` of a config without ids outside the vocabulary, which no model draws.

    Warns of the ids it drops, as Hugging Face loads such checkpoints. Values that are not ids stay
    for `eos_ids` to refuse.
    """
    ids = given if isinstance(given, list | tuple) else [given]
    outside = [each for each in ids if is_int(each) and not 0 <= each < vocab_size]
    if not outside:
        return given
    listed = ", ".join(str(each) if abs(each) < 10**20 else "a huge number" for each in outside)
    warnings.warn(
        f"eos_token_id has {listed}, which the vocabulary of {vocab_size} tokens lacks; ignored",
        stacklevel=3,
    )
    return [each for each in ids if each not in outside]


def boolean(config: Mapping[str, Any], name: str) -> bool:
    """A boolean field of the config; False if it is missing or null.

    Raises ValueError for other values, since the string `"false"` would count as true.
    """
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{name}={value!r} in the model's config must be true, false or null")
    return bool(value)
