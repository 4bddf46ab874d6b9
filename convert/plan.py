"""The plan of a conversion: config, leaves and data type, all checked against the source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from pagedjax import models
from pagedjax.architecture.model_config import ModelConfig
from pagedjax.config import check_dtype
from pagedjax.weights.params import ParamRule

from .assembly import Binding, bind, num_bytes, read_bound
from .prefixes import without_prefix
from .source import Source, TensorRef


@dataclass(frozen=True)
class Plan:
    """A source whose tensors are all bound to leaves of the params tree.

    dtype: of all leaves; never "auto".
    bindings: one per leaf, in the order of the rules.
    """

    source: Source
    config: ModelConfig
    dtype: str
    bindings: tuple[Binding, ...]

    @property
    def rules(self) -> tuple[ParamRule, ...]:
        """The rules of all leaves."""
        return tuple(binding.rule for binding in self.bindings)

    @property
    def num_bytes(self) -> int:
        """Total bytes of all leaves."""
        return num_bytes(self.rules, self.dtype)

    def leaves(self) -> Iterator[tuple[ParamRule, np.ndarray]]:
        """Read the leaves from the source, one at a time."""
        return read_bound(self.bindings, self.dtype)


def make_plan(source: Source, dtype: str) -> Plan:
    """Bind the tensors of `source` to the params of its model.

    Raises ValueError or NotImplementedError if the config is not supported or does not match the
    tensors.
    """
    config = _model_config(source)
    dtype = resolve_dtype(source, dtype)
    family = models.family(config.model_type)
    embed = next(each for each in family.param_rules(config) if each.path == ("embed",))
    tensors = without_prefix(source.tensors, embed.sources[0])
    config, tensors = _resolve_tied_head(config, tensors)
    bindings = bind(family.param_rules(config), tensors, family.SKIPPED_SOURCES)
    return Plan(source, replace(config, dtype=dtype), dtype, bindings)


def _model_config(source: Source) -> ModelConfig:
    try:
        return ModelConfig.from_hf(source.config, source.generation_config)
    except (TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(
            f"{source.path}: the config has a value of the wrong type ({error})"
        ) from error


def resolve_dtype(source: Source, dtype: str) -> str:
    """Return the data type that `dtype` means for `source`; never "auto"."""
    if check_dtype("dtype", dtype) != "auto":
        return dtype
    if source.dtype not in ("float32", "bfloat16", "float16"):
        raise ValueError(
            f"{source.path} specifies the dtype {source.dtype!r}, which is not supported; "
            "choose dtype float32, bfloat16 or float16"
        )
    return source.dtype


def _resolve_tied_head(
    config: ModelConfig, tensors: Mapping[str, TensorRef]
) -> tuple[ModelConfig, Mapping[str, TensorRef]]:
    """Handle an LM head in the checkpoint of a tied model as Hugging Face (transformers 5) does.

    A head equal to the embedding is dropped, a different one makes the model untied, and without
    an embedding the head is used as the embedding.
    """
    if not config.tie_word_embeddings:
        return config, tensors
    untied = replace(config, tie_word_embeddings=False)
    names = {
        rule.path: rule.sources[0]
        for rule in models.family(config.model_type).param_rules(untied)
        if rule.path in (("embed",), ("head",))
    }
    embed, head = names["embed",], names["head",]
    if head not in tensors:
        return config, tensors
    others = {name: tensor for name, tensor in tensors.items() if name != head}
    if embed not in tensors:
        return config, others | {embed: tensors[head]}
    same_shape = tensors[embed].shape == tensors[head].shape
    if same_shape and np.array_equal(tensors[embed].read(), tensors[head].read()):
        return config, others
    return untied, tensors
