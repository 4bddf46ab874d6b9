"""Rope parameters: every place of them in a `config.json`, and refused values."""

import re

import pytest

from pagedjax.config import RopeScaling
from tests.support.hf_configs import from_hf, without

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    "places",
    [{"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
     {"rope_theta": 500000.0},
     {"rope_parameters": {"rope_type": "default"}, "rope_theta": 500000.0},
     {"rope_scaling": {"rope_type": "default"}, "rope_theta": 500000.0},
     {"rope_scaling": None, "rope_parameters": None, "rope_theta": 500000},
     {"rope_scaling": {"type": "default", "rope_theta": 500000.0}}],
    ids=["nested", "top", "nested without theta", "old name", "null", "old name nested"],
)  # fmt: skip
def test_theta_is_read_from_every_place(places):
    assert from_hf(**places).rope == RopeScaling(theta=500000.0)


def test_theta_defaults_to_ten_thousand():
    assert from_hf().rope == RopeScaling(theta=10000.0)


@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_llama3_scaling_under_old_and_new_names(name, key):
    nested = without(LLAMA3, "rope_type") | {key: "llama3"}
    rope = from_hf(**{name: nested, "rope_theta": 500000.0}).rope
    assert rope == RopeScaling(500000.0, "llama3", 8.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize("name", [each for each in LLAMA3 if each != "rope_type"])
def test_a_missing_parameter_of_llama3_is_named(name):
    with pytest.raises(ValueError, match=name):
        from_hf(rope_parameters=without(LLAMA3, name))


@pytest.mark.parametrize("key", ["rope_type", "type"])
@pytest.mark.parametrize("kind", ["dynamic", "longrope", "proportional"])
def test_an_unsupported_rope_type_is_named(kind, key):
    with pytest.raises(NotImplementedError, match=repr(kind)):
        from_hf(rope_scaling={key: kind, "factor": 2.0})


@pytest.mark.parametrize("theta", [0, -1.0, float("inf"), float("nan"), 10**400, "1e4"])
@pytest.mark.parametrize("nested", [False, True])
def test_an_invalid_theta_is_named(theta, nested):
    place = {"rope_theta": theta}
    with pytest.raises(ValueError, match="rope_theta"):
        from_hf(**({"rope_parameters": place} if nested else place))


@pytest.mark.parametrize("value", [0, -8.0, float("nan"), "8"])
def test_an_invalid_factor_is_named(value):
    with pytest.raises(ValueError, match="factor"):
        from_hf(rope_parameters=LLAMA3 | {"factor": value})


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"rope_type": "su"}, "rope_type='su' is unknown; supported: 'default', 'linear', 'llama3'"),
     ({"rope_type": "yarn", "beta_fast": 1.0}, "beta_fast=1.0 must be above beta_slow=1.0"),
     ({"rope_type": "yarn", "truncate": 1}, "truncate=1 must be True or False"),
     ({"attention_factor": 0.0}, "attention_factor=0.0 must be positive"),
     ({"rope_type": None}, "rope_type=None is unknown"),
     ({"theta": 0.0}, "theta=0.0 must be positive"), ({"theta": float("inf")}, "theta=inf"),
     ({"theta": "1e4"}, "theta='1e4'"), ({"factor": 0}, "factor=0 must be positive"),
     ({"factor": -8.0}, "factor=-8.0"), ({"factor": float("nan")}, "factor=nan"),
     ({"original_max_position_embeddings": 0}, "original_max_position_embeddings=0"),
     ({"low_freq_factor": 0.0}, "low_freq_factor=0.0 must be positive"),
     ({"high_freq_factor": float("inf")}, "high_freq_factor=inf"),
     ({"low_freq_factor": 4.0}, "high_freq_factor=4.0 must be above low_freq_factor=4.0"),
     ({"high_freq_factor": 0.5}, "high_freq_factor=0.5 must be above low_freq_factor=1.0")],
    ids=str,
)  # fmt: skip
def test_an_invalid_rope_scaling_is_named(changes, named):
    with pytest.raises(ValueError, match=f"^{re.escape(named)}"):
        RopeScaling(**{"rope_type": "llama3", "factor": 8.0, **changes})


def test_llama3_scaling_with_overlapping_bands_is_refused():
    with pytest.raises(ValueError, match=r"high_freq_factor=1.0 must be above low_freq_factor=1.0"):
        from_hf(rope_parameters=LLAMA3 | {"high_freq_factor": 1.0})


@pytest.mark.parametrize("nested", [False, True])
def test_partial_rotation_is_refused(nested):
    place = {"partial_rotary_factor": 0.5}
    with pytest.raises(NotImplementedError, match="partial_rotary_factor=0.5"):
        from_hf(**({"rope_parameters": place} if nested else place))


@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_linear_scaling_under_old_and_new_names(name, key):
    rope = from_hf(**{name: {key: "linear", "factor": 4.0}, "rope_theta": 500.0}).rope
    assert rope == RopeScaling(500.0, "linear", 4.0)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [({}, {}), ({"beta_fast": 16, "beta_slow": 2, "truncate": False},
                {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False}),
     ({"attention_factor": 1.5}, {"attention_factor": 1.5}),
     ({"mscale": 0.707, "mscale_all_dim": 0.707}, {"attention_factor": 1.0}),
     ({"mscale": 1.0, "mscale_all_dim": 0.5}, {"attention_factor": 1.138629 / 1.0693147}),
     ({"mscale": 2.0}, {}), ({"factor": 0.5}, {"factor": 0.5, "attention_factor": 1.0}),
     ({"beta_fast": None, "truncate": None}, {})],
    ids=str,
)  # fmt: skip
def test_yarn_with_its_optional_parameters(changes, wanted):
    """The attention factor is 0.1 ln(4) + 1 unless it is given or derived from two mscales."""
    rope = from_hf(rope_parameters=YARN | changes).rope
    values = {"factor": 4.0, "original_max_position_embeddings": 32768,
              "attention_factor": 1.1386294} | wanted  # fmt: skip
    for name, value in values.items():
        assert getattr(rope, name) == pytest.approx(value, rel=1e-6), name


def test_the_original_context_of_yarn_is_beside_its_parameters_or_the_model_s_context():
    nested = without(YARN, "original_max_position_embeddings")
    places = {"max_position_embeddings": 4096, "rope_parameters": nested}
    assert from_hf(**places).rope.original_max_position_embeddings == 4096
    places["original_max_position_embeddings"] = 1024
    assert from_hf(**places).rope.original_max_position_embeddings == 1024


@pytest.mark.parametrize(
    "nested",
    [{"theta": 500000.0}, {"rope_type": "linear", "factor": 2.0, "beta_fast": 3},
     {"rope_type": "default", "factor": 2.0}, LLAMA3 | {"truncate": True},
     {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}],
    ids=str,
)  # fmt: skip
def test_an_unknown_key_is_named(nested):
    """A misspelt theta must not silently become 10000."""
    unknown = {"theta", "beta_fast", "factor", "truncate", "full_attention"} & nested.keys()
    unknown -= {"factor"} if len(unknown) > 1 or "llama3" in nested.values() else set()
    with pytest.raises(NotImplementedError, match=f"have .*{unknown.pop()}.*not supported"):
        from_hf(rope_parameters=nested)


def test_null_parameters_and_a_factor_of_one_are_ignored():
    nested = {"rope_type": "default", "rope_theta": 5e5, "factor": 1.0, "beta_fast": None}
    assert from_hf(rope_parameters=nested).rope == RopeScaling(5e5)
