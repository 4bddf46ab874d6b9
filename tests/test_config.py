"""Configs: every place where Hugging Face writes a value, and every value that is refused."""

import dataclasses
import re

import numpy as np
import pytest

from pagedjax.config import EngineConfig, ModelConfig, RopeScaling, check_dtype
from tests.support.tiny_models import hf_config

BASE = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def from_hf(generation_config=None, **changes):
    return ModelConfig.from_hf({**BASE, **changes}, generation_config)


def without(mapping, name):
    return {key: value for key, value in mapping.items() if key != name}


# -- shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "head_dim"),
    [({}, 8), ({"head_dim": None}, 8), ({"head_dim": 16}, 16),
     ({"hidden_size": 40, "num_attention_heads": 4, "head_dim": 8}, 8)],
    ids=["absent", "null", "given", "not the quotient"],
)  # fmt: skip
def test_head_dim(changes, head_dim):
    """B09."""
    assert from_hf(**changes).head_dim == head_dim


@pytest.mark.parametrize(
    ("changes", "counts"),
    [({}, (8, 1)), ({"num_key_value_heads": None}, (8, 1)), ({"num_key_value_heads": 2}, (2, 4))],
    ids=["absent", "null", "given"],
)
def test_kv_heads(changes, counts):
    config = from_hf(**changes)
    assert (config.num_kv_heads, config.group_size) == counts


@pytest.mark.parametrize(
    ("name", "field"),
    [("vocab_size", "vocab_size"), ("hidden_size", "hidden_size"),
     ("intermediate_size", "intermediate_size"), ("num_hidden_layers", "num_layers"),
     ("num_attention_heads", "num_heads"), ("max_position_embeddings", "max_position_embeddings"),
     ("rms_norm_eps", "rms_norm_eps"), ("initializer_range", "initializer_range"),
     ("bos_token_id", "bos_token_id"), ("dtype", "dtype"), ("torch_dtype", "dtype"),
     ("tie_word_embeddings", "tie_word_embeddings"), ("attention_bias", "attention_bias"),
     ("mlp_bias", "mlp_bias"), ("model_type", "model_type")],
)  # fmt: skip
def test_a_value_of_hugging_face_arrives_in_its_field(name, field):
    values = {"rms_norm_eps": 0.125, "initializer_range": 0.5, "model_type": "other"}
    values |= {"dtype": "bfloat16", "torch_dtype": "bfloat16"}
    flags = ("tie_word_embeddings", "attention_bias", "mlp_bias")
    value = True if name in flags else values.get(name, 48)
    assert (
        getattr(from_hf(**{name: value, "head_dim": 8, "num_key_value_heads": 2}), field) == value
    )


@pytest.mark.parametrize("name", BASE)
@pytest.mark.parametrize("present", [False, True], ids=["absent", "null"])
def test_a_missing_value_is_named(name, present):
    config = without(BASE, name) | ({name: None} if present else {})
    with pytest.raises(ValueError, match=name):
        ModelConfig.from_hf(config)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"vocab_size": 0}, "vocab_size=0"), ({"hidden_size": -64}, "hidden_size=-64"),
     ({"num_hidden_layers": 2.5}, "num_layers=2.5"), ({"num_attention_heads": 0}, "num_.*heads=0"),
     ({"head_dim": 0}, "head_dim=0"), ({"head_dim": 7}, "head_dim=7"),
     ({"num_key_value_heads": 3}, "num_kv_heads=3"), ({"num_key_value_heads": 0}, "num_kv_heads=0"),
     ({"intermediate_size": "96"}, "intermediate_size='96'"),
     ({"rms_norm_eps": 0}, "rms_norm_eps=0"),
     ({"rms_norm_eps": float("nan")}, "rms_norm_eps=nan"),
     ({"rms_norm_eps": 10**400}, "rms_norm_eps=1000"),
     ({"max_position_embeddings": 0}, "max_position_embeddings=0"),
     ({"vocab_size": True}, "vocab_size=True"), ({"hidden_size": "64"}, "hidden_size='64'")],
    ids=str,
)  # fmt: skip
def test_an_impossible_value_is_named(changes, named):
    with pytest.raises(ValueError, match=named):
        from_hf(**changes)


def test_equal_configs_are_one_static_argument():
    assert len({from_hf(eos_token_id=[5, 9]), from_hf(eos_token_id=[5, 9])}) == 1


@pytest.mark.parametrize("config", [from_hf(), RopeScaling(), EngineConfig()])
def test_configs_are_frozen(config):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, dataclasses.fields(config)[0].name, 1)


# -- rotary embeddings ----------------------------------------------------------------------------


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
def test_every_place_of_theta_means_the_same(places):
    """B10."""
    assert from_hf(**places).rope == RopeScaling(theta=500000.0)


def test_no_theta_is_ten_thousand():
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
def test_another_rope_type_is_named(kind, key):
    with pytest.raises(NotImplementedError, match=repr(kind)):
        from_hf(rope_scaling={key: kind, "factor": 2.0})


@pytest.mark.parametrize("theta", [0, -1.0, float("inf"), float("nan"), 10**400, "1e4"])
@pytest.mark.parametrize("nested", [False, True])
def test_an_impossible_theta_is_named(theta, nested):
    place = {"rope_theta": theta}
    with pytest.raises(ValueError, match="rope_theta"):
        from_hf(**({"rope_parameters": place} if nested else place))


@pytest.mark.parametrize("value", [0, -8.0, float("nan"), "8"])
def test_an_impossible_factor_is_named(value):
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
def test_a_rope_scaling_that_cannot_be_computed_is_named(changes, named):
    with pytest.raises(ValueError, match=f"^{re.escape(named)}"):
        RopeScaling(**{"rope_type": "llama3", "factor": 8.0, **changes})


def test_llama3_of_a_checkpoint_whose_bands_overlap_is_refused():
    with pytest.raises(ValueError, match=r"high_freq_factor=1.0 must be above low_freq_factor=1.0"):
        from_hf(rope_parameters=LLAMA3 | {"high_freq_factor": 1.0})


@pytest.mark.parametrize("nested", [False, True])
def test_a_partial_rotation_is_refused(nested):
    place = {"partial_rotary_factor": 0.5}
    with pytest.raises(NotImplementedError, match="partial_rotary_factor=0.5"):
        from_hf(**({"rope_parameters": place} if nested else place))


# -- what would change the mathematics ------------------------------------------------------------


def test_a_quantised_checkpoint_names_its_method():
    with pytest.raises(NotImplementedError, match="'awq'"):
        from_hf(quantization_config={"quant_method": "awq", "bits": 4})


@pytest.mark.parametrize("activation", ["gelu", "relu", "gelu_pytorch_tanh"])
def test_another_activation_is_refused(activation):
    with pytest.raises(NotImplementedError, match=repr(activation)):
        from_hf(hidden_act=activation)


@pytest.mark.parametrize("activation", ["silu", "swish", None])
def test_silu_under_both_names_is_accepted(activation):
    assert from_hf(hidden_act=activation) == from_hf()


# -- end of sequence ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "generation", "ids"),
    [({}, None, ()), ({"eos_token_id": None}, None, ()), ({"eos_token_id": 0}, None, (0,)),
     ({"eos_token_id": 5}, None, (5,)), ({"eos_token_id": [5, 9]}, None, (5, 9)),
     ({"eos_token_id": 5}, {}, (5,)), ({"eos_token_id": 5}, {"eos_token_id": None}, (5,)),
     ({"eos_token_id": 5}, {"eos_token_id": [7, 9]}, (7, 9)),
     ({"eos_token_id": [5, 9]}, {"eos_token_id": 0}, (0,)), ({}, {"eos_token_id": 3}, (3,))],
)  # fmt: skip
def test_the_generation_config_wins_over_the_config(config, generation, ids):
    """B19."""
    assert from_hf(generation, **config).eos_token_ids == ids


BAD_EOS = ["5", "12", ["5"], [5, "9"], -1, [5, -1], 128, [5, 128], 5.0, [2.5], True, [None], [[5]],
           {"id": 5}, 10**400]  # fmt: skip


@pytest.mark.parametrize("eos", BAD_EOS)
def test_an_end_that_is_no_id_of_the_vocabulary_is_named(eos):
    named = re.escape(f"eos_token_id={eos!r} must be an id from 0 to 127")
    for config, generation in (({"eos_token_id": eos}, None), ({}, {"eos_token_id": eos})):
        with pytest.raises(ValueError, match=named):
            from_hf(generation, **config)
    with pytest.raises(ValueError, match=named):
        dataclasses.replace(from_hf(), eos_token_ids=eos)


def test_an_end_that_the_generation_config_replaces_is_not_looked_at():
    assert from_hf({"eos_token_id": 7}, eos_token_id=128).eos_token_ids == (7,)


@pytest.mark.parametrize(
    ("eos", "ids"),
    [(None, ()), (127, (127,)), (np.int32(3), (3,)), ([], ()), ([127], (127,)), ((0, 5), (0, 5)),
     (np.array([5, 9]), (5, 9))],
)  # fmt: skip
def test_ends_within_the_vocabulary_become_a_tuple(eos, ids):
    assert dataclasses.replace(from_hf(), eos_token_ids=eos).eos_token_ids == ids


# -- the engine -----------------------------------------------------------------------------------

SIZES = ["max_model_len", "block_size", "num_blocks", "kv_cache_bytes", "max_num_seqs",
         "max_num_batched_tokens"]  # fmt: skip


@pytest.mark.parametrize("value", [0, -1, 1.5, "16", True, float("inf")])
@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_is_no_positive_int_is_named(name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        EngineConfig(**{name: value})


@pytest.mark.parametrize("name", SIZES)
def test_a_size_of_one_is_accepted(name):
    assert getattr(EngineConfig(**{name: 1}), name) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("gpu_memory_utilization", 0), ("gpu_memory_utilization", -0.1),
     ("gpu_memory_utilization", 1.01), ("gpu_memory_utilization", float("nan")),
     ("gpu_memory_utilization", 10**400), ("gpu_memory_utilization", "0.9"),
     ("kv_cache_dtype", "float64"), ("kv_cache_dtype", None),
     ("kv_cache_dtype", "uint8"), ("attention", "flash"), ("attention", ""), ("seed", -1),
     ("seed", 2**32), ("seed", 0.5), ("seed", None), ("steps_in_flight", 2),
     ("steps_in_flight", -1), ("max_logprobs", 0), ("logprobs_mode", "cooked"),
     ("logits_processor", 5)],
)  # fmt: skip
def test_an_option_out_of_range_is_named(name, value):
    with pytest.raises(ValueError, match=f"{name}={value}|{name}={value!r}"):
        EngineConfig(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("gpu_memory_utilization", 1), ("gpu_memory_utilization", 0.01), ("seed", 0),
     ("seed", 2**32 - 1), ("steps_in_flight", 0), ("attention", "xla"),
     ("max_logprobs", 1), ("logprobs_mode", "processed"), ("logits_processor", max),
     ("enable_prefix_caching", False), ("kv_cache_dtype", "bfloat16"),
     ("kv_cache_dtype", "float16"), ("kv_cache_dtype", "float32"), ("kv_cache_dtype", "int8"),
     ("kv_cache_dtype", "fp8"), ("attention", "pallas"), ("attention", "pallas_interpret"),
     ("attention", "pallas_mosaic")],
)  # fmt: skip
def test_an_option_at_the_edge_of_its_range_is_accepted(name, value):
    assert getattr(EngineConfig(**{name: value}), name) == value


def test_the_engines_defaults_are_those_of_the_contract():
    fields = {each.name: each.default for each in dataclasses.fields(EngineConfig)}
    assert fields == {
        "max_model_len": None, "block_size": 16, "num_blocks": None,
        "gpu_memory_utilization": 0.9, "kv_cache_bytes": None, "kv_cache_dtype": "auto",
        "max_num_seqs": 64, "max_num_batched_tokens": None, "enable_prefix_caching": None,
        "attention": "auto", "mesh": None, "seed": 0, "compilation_cache_dir": None,
        "steps_in_flight": 1,
        "max_logprobs": 20,
        "logprobs_mode": "raw",
        "logits_processor": None,
        "extra": None,
        "batch_invariant": False,
    }  # fmt: skip


@pytest.mark.parametrize("value", ["auto", "float32", "bfloat16", "float16"])
def test_a_dtype_of_the_contract_is_accepted(value):
    assert check_dtype("dtype", value) == value


@pytest.mark.parametrize("value", ["float64", "int8", "", None])
def test_another_dtype_is_named(value):
    with pytest.raises(ValueError, match=f"dtype={value!r}"):
        check_dtype("dtype", value)


@pytest.mark.parametrize("value", ["false", "true", 0, 1, [], {}])
@pytest.mark.parametrize("name", ["tie_word_embeddings", "attention_bias", "mlp_bias"])
def test_a_boolean_that_is_none_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name}=.* must be true, false or null"):
        ModelConfig.from_hf({**hf_config("base"), name: value})


@pytest.mark.parametrize("name", ["vocab_size", "hidden_size", "num_attention_heads",
                                  "rms_norm_eps", "rope_theta", "bos_token_id", "head_dim",
                                  "initializer_range", "max_position_embeddings"])  # fmt: skip
def test_a_number_given_as_a_string_is_refused(name):
    config = hf_config("base")
    config.pop("rope_parameters", None)
    with pytest.raises(ValueError, match="'8'"):
        ModelConfig.from_hf({**config, name: "8"})
