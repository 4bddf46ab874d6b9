"""Model families, one module each, named by Hugging Face's `model_type`.

A family module defines `param_rules`, `forward`, `logits`, and the names of its tensors in
Hugging Face and GGUF files, so that a new family is one new file. Imports `layers` and `weights`.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import jax
from jax.typing import DTypeLike

from pagedjax.architecture.model_config import ModelConfig
from pagedjax.weights.params import Params, init_leaves


def supported() -> list[str]:
    """The names of the families in this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def family(model_type: str) -> ModuleType:
    """The module of `model_type`; raises NotImplementedError if it is not supported."""
    if model_type not in supported():
        raise NotImplementedError(
            f"model_type {model_type!r} is not supported; supported: {', '.join(supported())}"
        )
    return importlib.import_module(f"{__name__}.{model_type}")


def init_params(config: ModelConfig, key: jax.Array, dtype: DTypeLike = "float32") -> Params:
    """Random params: normal matrices with standard deviation `initializer_range` of the config,
    norms of one, zero biases. `key` is a `jax.random.key`.
    """
    return init_leaves(
        family(config.model_type).param_rules(config), key, dtype, config.initializer_range
    )
