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
@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "longrope"])
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
    [({"rope_type": "yarn"}, "rope_type='yarn' is unknown; supported: 'default', 'llama3'"),
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
