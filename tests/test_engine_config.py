"""`EngineConfig`: defaults, accepted values and refused values."""

import dataclasses

import pytest

from pagedjax.config import EngineConfig, check_dtype

SIZES = ["max_model_len", "block_size", "num_blocks", "kv_cache_bytes", "max_num_seqs",
         "max_num_batched_tokens"]  # fmt: skip


@pytest.mark.parametrize("value", [0, -1, 1.5, "16", True, float("inf")])
@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_is_not_a_positive_int_is_named(name, value):
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


def test_the_documented_defaults():
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
def test_a_supported_dtype_is_accepted(value):
    assert check_dtype("dtype", value) == value


@pytest.mark.parametrize("value", ["float64", "int8", "", None])
def test_an_unsupported_dtype_is_named(value):
    with pytest.raises(ValueError, match=f"dtype={value!r}"):
        check_dtype("dtype", value)
