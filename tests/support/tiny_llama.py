"""Tiny random models on the device, and engines around them."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax.numpy as jnp

from pagedjax import Engine, EngineConfig, ModelConfig, RequestOutput, SamplingParams
from pagedjax.models import family
from pagedjax.weights.params import Params, build_tree
from tests.support.tiny_models import hf_config, hf_tensors

DEFAULT_ATTENTION = "auto"  # of engines; tests of other implementations replace it
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)


@cache
def tiny(name: str) -> tuple[ModelConfig, Params]:
    """Config and float32 params of a variant of `tiny_models`."""
    config, tensors = ModelConfig.from_hf(hf_config(name)), hf_tensors(name)
    rules = family(config.model_type).param_rules(config)
    return config, build_tree(
        {
            rule.path: jnp.asarray(rule.assemble([tensors[each] for each in rule.sources]))
            for rule in rules
        }
    )


def make_engine(name: str = "base", tokenizer: Any = None, **options: Any) -> Engine:
    """An engine of 8 slots with a pool of 64 blocks, unless `options` say otherwise."""
    config, params = tiny(name)
    options = {"num_blocks": 64, "max_num_seqs": 8, "attention": DEFAULT_ATTENTION, **options}
    return Engine(config, params, EngineConfig(**options), tokenizer)


def finished(outputs: list[RequestOutput]) -> dict[str, list[int]]:
    """Token ids of the finished outputs, by request id."""
    return {each.request_id: each.outputs[0].token_ids for each in outputs if each.finished}
