"""Params of an engine: held by reference, replaced, and refused."""

from __future__ import annotations

from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import freeze

from pagedjax import Engine, EngineConfig
from tests.support.engine_runs import PROMPT, solo
from tests.support.tiny_llama import GREEDY, finished, make_engine, tiny

pytestmark = pytest.mark.usefixtures("attention")


def test_params_are_held_by_reference() -> None:
    config, params = tiny("base")
    engine = Engine(config, params, EngineConfig(num_blocks=8))
    assert engine.params is params


def test_update_params_changes_the_output_and_compiles_nothing() -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    before = finished(engine.run())["a"]
    compiled = engine.stats().num_compilations
    other = jax.tree.map(lambda leaf: leaf * 1.5, tiny("base")[1])
    engine.update_params(other)
    engine.add_request("a", PROMPT, GREEDY)
    after = finished(engine.run())["a"]
    assert after != before
    assert engine.stats().num_compilations == compiled
    config = tiny("base")[0]
    fresh = Engine(config, other, EngineConfig(num_blocks=64, max_num_seqs=8))
    fresh.add_request("a", PROMPT, GREEDY)
    assert finished(fresh.run())["a"] == after


def listed(params: Any) -> Any:
    return params | {"layers": list(params["layers"])}


def read_only(params: Any) -> Any:
    """Params as a mapping type that is not a JAX pytree."""
    return MappingProxyType(params | {"layers": tuple(map(MappingProxyType, params["layers"]))})


@pytest.mark.parametrize("form", [listed, freeze, OrderedDict, read_only])
def test_params_in_containers_of_another_type_are_the_same_params(form: Any) -> None:
    config, params = tiny("base")
    other = jax.tree.map(lambda leaf: leaf * 1.5, params)
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    before = finished(engine.run())["a"]
    compiled = engine.stats().num_compilations
    engine.update_params(form(other))
    engine.add_request("a", PROMPT, GREEDY)
    after = finished(engine.run())["a"]
    assert after != before
    assert engine.stats().num_compilations == compiled

    given = form(params)
    again = Engine(config, given, EngineConfig(num_blocks=64, max_num_seqs=8))
    assert again.params is given
    for tree, wanted in ((given, before), (other, after), (form(params), before)):
        again.update_params(tree)
        again.add_request("a", PROMPT, GREEDY)
        assert finished(again.run())["a"] == wanted


def test_update_params_of_another_dtype_is_refused_by_name() -> None:
    engine = make_engine()
    other = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), tiny("base")[1])
    with pytest.raises(ValueError, match="embed is bfloat16"):
        engine.update_params(other)
    assert engine.params is tiny("base")[1]


def test_deleted_params_are_named_with_the_remedy() -> None:
    config, params = tiny("base")
    copy = jax.tree.map(lambda leaf: leaf + 0, params)
    engine = Engine(config, copy, EngineConfig(num_blocks=64, max_num_seqs=8))
    engine.add_request("a", PROMPT, GREEDY)
    copy["layers"][1]["down"].delete()
    with pytest.raises(RuntimeError, match="layers/1/down was deleted.*update_params"):
        engine.step()
    engine.update_params(params)
    assert finished(engine.run())["a"] == solo(PROMPT, GREEDY)


def test_params_that_do_not_fit_are_refused() -> None:
    config, params = tiny("base")
    without = {name: leaf for name, leaf in params.items() if name != "head"}
    with pytest.raises(ValueError, match="head is missing"):
        Engine(config, without)
    with pytest.raises(TypeError, match="embed is a ndarray"):
        Engine(config, {**params, "embed": np.asarray(params["embed"])})
