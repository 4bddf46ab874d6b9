"""The params tree: its documented structure, and errors that name a leaf."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pagedjax import init_params
from pagedjax.config import ModelConfig
from pagedjax.models import llama
from pagedjax.weights.leaves import check_alive, check_arrays, check_replacement
from pagedjax.weights.params import build_tree, check_params, flatten_tree

# All sizes differ, so a swap of two axes changes the shape.
V, E, F, L, H, K, D = 11, 10, 14, 2, 6, 3, 4
G = H // K


def config(**changes):
    return ModelConfig(V, E, F, L, H, K, D, **changes)


@functools.cache
def drawn(dtype, **changes):
    return init_params(config(**changes), jax.random.key(0), dtype)


def params(dtype="float32", **changes):
    """A new tree whose leaves are shared with other tests."""
    return build_tree(flatten_tree(drawn(dtype, **changes)))


def shapes(tree):
    return jax.tree.map(lambda leaf: leaf.shape, tree)


def with_leaf(tree, path, leaf):
    """A copy of `tree` with `leaf` at `path`; None removes it."""
    leaves = flatten_tree(tree) | {path: leaf}
    return build_tree({path: leaf for path, leaf in leaves.items() if leaf is not None})


# -- structure ------------------------------------------------------------------------------------

LAYER = {"attn_norm": (E,), "qkv": (K, G + 2, D, E), "o": (E, K, G, D), "mlp_norm": (E,),
         "gate_up": (2, F, E), "down": (E, F)}  # fmt: skip
TREE = {"embed": (V, E), "layers": (LAYER,) * L, "norm": (E,), "head": (V, E)}


@pytest.mark.parametrize(
    ("changes", "layer", "top"),
    [({}, {}, {}),
     ({"attention_bias": True}, {"qkv_bias": (K, G + 2, D), "o_bias": (E,)}, {}),
     ({"mlp_bias": True}, {"gate_up_bias": (2, F), "down_bias": (E,)}, {}),
     ({"tie_word_embeddings": True}, {}, {"head": None})],
    ids=["plain", "attention bias", "mlp bias", "tied"],
)  # fmt: skip
def test_params_have_the_documented_structure(changes, layer, top):
    wanted = {**TREE, "layers": ({**LAYER, **layer},) * L, **top}
    wanted = {name: shape for name, shape in wanted.items() if shape is not None}
    assert shapes(params(**changes)) == wanted


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_leaf_has_the_requested_dtype(dtype):
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params(dtype))} == {dtype}


def test_norms_start_at_one_and_biases_at_zero():
    leaves = flatten_tree(params(attention_bias=True, mlp_bias=True))
    for path, leaf in leaves.items():
        if "norm" in path[-1] or "bias" in path[-1]:
            assert (leaf == float("norm" in path[-1])).all(), path


def test_matrices_have_the_standard_deviation_of_the_config():
    tree = init_params(config(initializer_range=0.5), jax.random.key(0))
    values = np.concatenate([np.ravel(tree["layers"][i][name]) for i in (0, 1) for name in LAYER
                             if "norm" not in name])  # fmt: skip
    assert values.std() == pytest.approx(0.5, rel=0.1)
    assert abs(values.mean()) < 0.05


def test_no_two_matrices_are_equal():
    first, second = params()["layers"]
    assert not np.array_equal(first["down"], second["down"])


def test_the_same_key_gives_the_same_params():
    again = init_params(config(), jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, params(), again)


def test_another_key_gives_other_params():
    other = init_params(config(), jax.random.key(1))
    assert not np.array_equal(params()["embed"], other["embed"])


def test_each_rule_assembles_its_shape_from_its_sources():
    for rule in llama.param_rules(config(attention_bias=True, mlp_bias=True)):
        made = rule.assemble([np.zeros(shape) for shape in rule.source_shapes])
        assert made.shape == rule.shape, rule.name


# -- trees and leaves -----------------------------------------------------------------------------


def test_flattening_names_each_leaf_by_its_path():
    tree = {"a": 1, "b": ({"c": 2}, {"c": 3})}
    assert flatten_tree(tree) == {("a",): 1, ("b", 0, "c"): 2, ("b", 1, "c"): 3}


@pytest.mark.parametrize(
    "tree",
    [{"a": 1}, {"a": {"b": 1, "c": 2}}, {"a": ({"b": 1}, {"b": 2}), "d": 3}, {"a": (1, 2, 3)}],
)
def test_building_undoes_flattening(tree):
    assert build_tree(flatten_tree(tree)) == tree


def test_building_a_tuple_does_not_depend_on_the_order_of_leaves():
    tree = {"a": tuple(range(12))}
    leaves = dict(reversed(flatten_tree(tree).items()))
    assert build_tree(leaves) == tree


def test_building_undoes_flattening_of_params():
    tree = params(attention_bias=True)
    rebuilt = build_tree(flatten_tree(tree))
    assert jax.tree.structure(rebuilt) == jax.tree.structure(tree)


# -- refusals -------------------------------------------------------------------------------------

RULES = llama.param_rules(config())
QKV = ("layers", 1, "qkv")


def test_params_that_match_the_rules_are_accepted():
    check_params(RULES, params())


@pytest.mark.parametrize(
    ("path", "leaf", "named"),
    [(QKV, None, "layers/1/qkv is missing"),
     (("layers", 1, "extra"), jnp.zeros(2), "layers/1/extra is unexpected"),
     (QKV, jnp.zeros((K, G + 2, E, D)),
      r"layers/1/qkv has shape \(3, 4, 10, 4\), not \(3, 4, 4, 10\)"),
     (("head",), None, "head is missing")],
    ids=["missing", "unexpected", "shape", "head"],
)  # fmt: skip
def test_params_that_do_not_fit_name_the_leaf(path, leaf, named):
    with pytest.raises(ValueError, match=named):
        check_params(RULES, with_leaf(params(), path, leaf))


def test_every_leaf_that_does_not_fit_is_named():
    tree = with_leaf(with_leaf(params(), QKV, None), ("norm",), jnp.zeros(3))
    with pytest.raises(ValueError, match="layers/1/qkv is missing; norm has shape"):
        check_params(RULES, tree)


@pytest.mark.parametrize("layers", [1, 3])
def test_another_number_of_layers_is_refused(layers):
    tree = params()
    tree["layers"] = (tree["layers"] * 2)[:layers]
    with pytest.raises(ValueError, match="layers/1/qkv is missing|layers/2/qkv is unexpected"):
        check_params(RULES, tree)


def test_a_leaf_of_numpy_is_named():
    tree = with_leaf(params(), QKV, np.zeros((K, G + 2, D, E), np.float32))
    with pytest.raises(TypeError, match="layers/1/qkv is a ndarray"):
        check_arrays(tree)


@pytest.mark.parametrize("kind", [nnx.Param, nnx.Variable])
def test_nnx_variables_are_refused_with_a_hint(kind):
    """The error suggests `nnx.to_pure_dict`, not `device_put`, which would return nnx variables;
    trees made as suggested are accepted."""
    state = nnx.State({"embed": kind(jnp.zeros(3)), "layers": {0: {"o": kind(jnp.zeros(2))}}})
    with pytest.raises(TypeError, match=r"embed is a \w+ of flax.nnx; .*nnx.to_pure_dict") as error:
        check_arrays(state)
    assert "device_put" not in str(error.value)
    check_arrays(nnx.to_pure_dict(state))
    check_arrays({"embed": state["embed"][...]})


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_mixed_dtypes_are_named(dtype):
    tree = with_leaf(params(), QKV, jnp.zeros((K, G + 2, D, E), dtype))
    with pytest.raises(ValueError, match=f"{dtype}, float32|float32, {dtype}"):
        check_arrays(tree)


def test_a_dtype_that_is_not_supported_is_named():
    with pytest.raises(ValueError, match="int8"):
        check_arrays(jax.tree.map(lambda leaf: leaf.astype("int8"), params()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_arrays_of_one_supported_dtype_are_accepted(dtype):
    check_arrays(params(dtype))


def test_a_replacement_of_the_same_kind_is_accepted():
    check_replacement(params(), init_params(config(), jax.random.key(7)))


@pytest.mark.parametrize(
    ("path", "leaf", "named"),
    [(QKV, None, "structure: layers/1/qkv"),
     (("extra",), jnp.zeros(2), "structure: extra"),
     (QKV, jnp.zeros((K, G + 2, D, E + 1)),
      r"layers/1/qkv is float32\[3, 4, 4, 11\], not float32\[3, 4, 4, 10\]")],
    ids=["missing", "unexpected", "shape"],
)  # fmt: skip
def test_a_replacement_that_does_not_fit_names_the_leaf(path, leaf, named):
    with pytest.raises(ValueError, match=named):
        check_replacement(params(), with_leaf(params(), path, leaf))


def test_a_replacement_of_another_dtype_names_both():
    with pytest.raises(ValueError, match=r"norm is bfloat16\[10\], not float32\[10\]"):
        check_replacement(params(), params("bfloat16"))


def test_a_replacement_of_numpy_is_refused():
    with pytest.raises(TypeError, match="embed is a ndarray"):
        check_replacement(params(), jax.tree.map(np.asarray, params()))


def test_undeleted_params_are_accepted():
    check_alive(params())


def test_a_deleted_leaf_is_named_with_the_remedy():
    gone = jnp.zeros((K, G + 2, D, E))
    gone.delete()
    with pytest.raises(RuntimeError, match="layers/1/qkv was deleted.*update_params"):
        check_alive(with_leaf(params(), QKV, gone))
