"""Fields of a Hugging Face `config.json`, checked one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagedjax.checks.values import (
    is_int,
    plain_list,
    plain_number,
)


def refuse_other_mathematics(config: Mapping[str, Any]) -> None:
    """Raise NotImplementedError for a choice that no family implements."""
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise NotImplementedError(
            f"quantization_config with quant_method={method!r} cannot be read; "
            "convert an unquantised checkpoint, or a GGUF file"
        )
    if config.get("hidden_act") not in (None, "silu", "swish"):
        raise NotImplementedError(f"hidden_act={config['hidden_act']!r}; supported: 'silu'")


def required(config: Mapping[str, Any], name: str) -> Any:
    """The field, or ValueError if it is missing or null."""
    if config.get(name) is None:
        raise ValueError(f"the model's config has no {name!r}")
    return config[name]


def value_or(value: Any, default: Any) -> Any:
    """`default` for None."""
    return default if value is None else value


def eos_ids(given: Any, vocab_size: int) -> tuple[int, ...]:
    """None, an id or a list of ids as a tuple; ValueError if one can never be drawn."""
    ids = () if given is None else plain_list([given] if is_int(plain_number(given)) else given)
    if not isinstance(ids, list | tuple) or not all(
        is_int(each) and 0 <= each < vocab_size for each in ids
    ):
        raise ValueError(
            f"eos_token_id={given!r} must be an id from 0 to {vocab_size - 1}, the vocabulary's "
            "last, a list of such ids, or null"
        )
    return tuple(ids)


def boolean(config: Mapping[str, Any], name: str) -> bool:
    """A true or false of the config; False where it is missing or null.

    Raises ValueError for anything else: `"false"`, a string, would count as true.
    """
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{name}={value!r} in the model's config must be true, false or null")
    return bool(value)
