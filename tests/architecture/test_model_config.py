"""`ModelConfig.from_hf`: every place of a value in a `config.json`, and refused values."""

import dataclasses
import re

import numpy as np
import pytest

from pagedjax.config import EngineConfig, ModelConfig, RopeScaling
from tests.support.hf_configs import BASE, from_hf, without
from tests.support.tiny_models import hf_config

# -- shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "head_dim"),
    [({}, 8), ({"head_dim": None}, 8), ({"head_dim": 16}, 16),
     ({"hidden_size": 40, "num_attention_heads": 4, "head_dim": 8}, 8)],
    ids=["absent", "null", "given", "not the quotient"],
)  # fmt: skip
def test_head_dim(changes, head_dim):
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
def test_each_hugging_face_value_sets_its_field(name, field):
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
     ({"num_hidden_layers": 2.5}, "num_hidden_layers=2.5"),
     ({"num_attention_heads": 0}, "num_.*heads=0"),
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
def test_an_invalid_value_is_named(changes, named):
    with pytest.raises(ValueError, match=named):
        from_hf(**changes)


def test_equal_configs_have_equal_hashes():
    assert len({from_hf(eos_token_id=[5, 9]), from_hf(eos_token_id=[5, 9])}) == 1


@pytest.mark.parametrize("config", [from_hf(), RopeScaling(), EngineConfig()])
def test_configs_are_frozen(config):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, dataclasses.fields(config)[0].name, 1)


@pytest.mark.parametrize("value", ["false", "true", 0, 1, [], {}])
@pytest.mark.parametrize("name", ["tie_word_embeddings", "attention_bias", "mlp_bias"])
def test_a_flag_that_is_not_a_boolean_is_named(name, value):
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


# -- unsupported models ---------------------------------------------------------------------------


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
def test_the_generation_config_overrides_the_config(config, generation, ids):
    assert from_hf(generation, **config).eos_token_ids == ids


BAD_EOS = ["5", "12", ["5"], [5, "9"], 5.0, [2.5], True, [None], [[5]], {"id": 5}]


@pytest.mark.parametrize("eos", BAD_EOS)
def test_an_eos_id_that_is_not_an_id_is_named(eos):
    named = re.escape(f"eos_token_id={eos!r} must be an id from 0 to 127")
    for config, generation in (({"eos_token_id": eos}, None), ({}, {"eos_token_id": eos})):
        with pytest.raises(ValueError, match=named):
            from_hf(generation, **config)
    with pytest.raises(ValueError, match=named):
        dataclasses.replace(from_hf(), eos_token_ids=eos)


OUTSIDE_EOS = [(-1, (), "-1"), ([5, -1], (5,), "-1"), (128, (), "128"),
               ([2, 128, 9, 500], (2, 9), "128, 500"), (10**400, (), "a huge number")]  # fmt: skip


@pytest.mark.parametrize(("eos", "kept", "named"), OUTSIDE_EOS)
def test_an_eos_id_outside_the_vocabulary_is_dropped_with_a_warning(eos, kept, named):
    """Hugging Face and vLLM load such checkpoints: no model draws the id."""
    for config, generation in (({"eos_token_id": eos}, None), ({}, {"eos_token_id": eos})):
        with pytest.warns(UserWarning, match=f"eos_token_id has {named}, which the vocabulary"):
            assert from_hf(generation, **config).eos_token_ids == kept
    with pytest.raises(ValueError, match="eos_token_id.*must be an id from 0 to 127"):
        dataclasses.replace(from_hf(), eos_token_ids=eos)


def test_an_eos_id_replaced_by_the_generation_config_is_not_checked():
    assert from_hf({"eos_token_id": 7}, eos_token_id=128).eos_token_ids == (7,)


@pytest.mark.parametrize(
    ("eos", "ids"),
    [(None, ()), (127, (127,)), (np.int32(3), (3,)), ([], ()), ([127], (127,)), ((0, 5), (0, 5)),
     (np.array([5, 9]), (5, 9))],
)  # fmt: skip
def test_eos_ids_within_the_vocabulary_become_a_tuple(eos, ids):
    assert dataclasses.replace(from_hf(), eos_token_ids=eos).eos_token_ids == ids
