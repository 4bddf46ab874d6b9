"""GGUF: row order, configs from metadata, and refusals."""

import json

import gguf
import numpy as np
import pytest

from pagedjax.config import ModelConfig
from pagedjax.convert.gguf_file import read_gguf
from pagedjax.convert.gguf_rope import solve_llama3
from pagedjax.convert.gguf_source import open_gguf, unpermute
from tests.support.gguf_files import gguf_tensors, interleaved, rope_factors, write_gguf
from tests.support.tiny_models import VARIANTS, hf_config, hf_tensors

KINDS = gguf.GGMLQuantizationType


@pytest.mark.parametrize("heads", [1, 2, 3, 8])
@pytest.mark.parametrize("inputs", [(), (5,)])
def test_unpermute_undoes_the_interleaving(heads, inputs):
    rows = np.arange(heads * 8 * int(np.prod(inputs))).reshape(heads * 8, *inputs)
    assert np.array_equal(unpermute(interleaved(rows, heads), heads), rows)
    assert not np.array_equal(interleaved(interleaved(rows, heads), heads), rows)


def test_interleaving_of_one_head():
    """The row order of GGUF files, as literals."""
    assert interleaved(np.arange(8), 1).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert unpermute(np.arange(8), 1).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


@pytest.mark.parametrize("name", VARIANTS)
def test_tensors_equal_hugging_face(tmp_path, name):
    """Among them 8 heads on 2 KV heads, biases and rope factors."""
    write_gguf(name, tmp_path / "m.gguf")
    tensors, expected = open_gguf(tmp_path / "m.gguf").tensors, hf_tensors(name)
    assert tensors.keys() == expected.keys()
    for key, array in expected.items():
        assert tensors[key].shape == array.shape
        np.testing.assert_array_equal(tensors[key].read(), array, err_msg=key)


@pytest.mark.parametrize("name", VARIANTS)
def test_config_equals_hugging_face(tmp_path, name):
    write_gguf(name, tmp_path / "m.gguf")
    source = open_gguf(tmp_path / "m.gguf")
    made = ModelConfig.from_hf(json.loads(json.dumps(source.config)), source.generation_config)
    assert made == ModelConfig.from_hf(hf_config(name))


def _scaling(theta, size, factor, low, high, original):
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    rope = dict(zip(names, (factor, low, high, original), strict=True))
    return {"head_dim": size, "rope_parameters": {"rope_theta": theta, **rope}}


@pytest.mark.parametrize("size", [16, 64, 128])
@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_published_llama3_scaling_is_found(size, factor):
    """LLaMA 3.1 has factor 8 and 3.2 has 32; both have low 1, high 4 and length 8192."""
    config = _scaling(500000.0, size, factor, 1.0, 4.0, 8192)
    found = solve_llama3(rope_factors(config), 500000.0, size)
    assert found == {"rope_type": "llama3", **config["rope_parameters"]}


@pytest.mark.parametrize(
    "values", [(4.0, 1.0, 2.0, 256), (8.0, 2.0, 4.0, 8192), (5.0, 1.0, 3.5, 3000), (2.0, 1, 9, 777)]
)
@pytest.mark.parametrize("size", [8, 64])
def test_other_llama3_scaling_gives_the_same_factors(values, size):
    config = _scaling(10000.0, size, *values)
    found = solve_llama3(rope_factors(config), 10000.0, size)
    again = rope_factors({"head_dim": size, "rope_parameters": found})
    np.testing.assert_allclose(again, rope_factors(config), rtol=2e-5)
    assert isinstance(found["original_max_position_embeddings"], int)


def test_factors_of_another_scaling_are_refused(tmp_path):
    factors = rope_factors(hf_config("llama3"))
    factors[3] *= 1.001
    write_gguf("llama3", tmp_path / "m.gguf", tensors={"rope_freqs.weight": factors})
    with pytest.raises(NotImplementedError, match="rope_freqs.weight"):
        open_gguf(tmp_path / "m.gguf")


def test_factors_of_one_are_no_scaling():
    found = solve_llama3(np.ones(8, np.float32), 1e4, 16)
    assert found == {"rope_type": "default", "rope_theta": 1e4}


EDITS = {
    "architecture": (lambda w: None, "qwen2"),
    "scaling": (
        lambda w: (
            w.add_rope_scaling_type(gguf.RopeScalingType.YARN),
            w.add_rope_scaling_factor(4.0),
        ),
        "rope.scaling.type='yarn'",
    ),
    "linear": (lambda w: w.add_rope_scaling_factor(4.0), "rope.scaling.factor=4.0"),
    "experts": (lambda w: w.add_expert_count(8), "expert_count=8"),
    "parts": (lambda w: w.add_uint16("split.count", 3), "3 parts"),
}


@pytest.mark.parametrize("kind", EDITS)
def test_unsupported_metadata_is_named(tmp_path, kind):
    edit, message = EDITS[kind]
    path = tmp_path / "m.gguf"
    write_gguf("base", path, edit=edit)
    if kind == "architecture":
        path.write_bytes(path.read_bytes().replace(b"llama", b"qwen2"))
    with pytest.raises(NotImplementedError, match=message):
        open_gguf(path)


def test_partial_rotation_is_refused(tmp_path):
    write_gguf("base", tmp_path / "m.gguf", edit=lambda w: w.add_key_length(16))
    with pytest.raises(NotImplementedError, match="rope.dimension_count=8"):
        open_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16"), ("Q8_0", "bfloat16")],
)
def test_tensor_types(tmp_path, kind, dtype):
    """With matrices in `kind` and norms in F32: the source's dtype, and the values of the gguf
    library."""
    path = tmp_path / "m.gguf"
    write_gguf("base", path, lambda name: KINDS.F32 if "norm" in name else KINDS[kind])
    source = open_gguf(path)
    assert source.dtype == dtype
    name, head = "model.layers.1.self_attn.k_proj.weight", "blk.1.attn_k.weight"
    stored = gguf.quantize(gguf_tensors("base")[head], KINDS[kind])
    expected = unpermute(gguf.dequantize(stored, KINDS[kind]), 2)
    assert source.tensors[name].read().dtype.name == source.tensors[name].dtype
    np.testing.assert_array_equal(source.tensors[name].read().astype(np.float32), expected)
    assert source.tensors[name].dtype == ("float32" if kind == "Q8_0" else dtype)


def test_types_without_dequantiser_are_named(tmp_path):
    path = tmp_path / "m.gguf"
    raw = np.zeros((128, 80), np.uint8)

    def edit(writer):
        writer.add_tensor("blk.0.extra.weight", raw, raw_dtype=KINDS.Q8_1)

    write_gguf("base", path, edit=edit)
    with pytest.raises(NotImplementedError, match="'blk.0.extra.weight' has the type Q8_1"):
        open_gguf(path)


def test_every_truncation_is_detected(tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf("base", path)
    content = path.read_bytes()
    for size in (len(content) - 1, len(content) // 2, 3000, 300, 30, 9, 5):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match="truncated") as error:
            open_gguf(path)
        assert "\n" not in str(error.value)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGML" + bytes(60))
    with pytest.raises(ValueError, match="not a GGUF file"):
        read_gguf(path)
    path.write_bytes(b"GGUF" + (1).to_bytes(4, "little") + bytes(60))
    with pytest.raises(NotImplementedError, match="GGUF version 1"):
        read_gguf(path)


def test_header_equals_the_library(tmp_path):
    """Our header reader against that of the gguf package."""
    path = tmp_path / "m.gguf"

    def edit(writer):
        writer.add_array("a.texts", ["x", "\u00e9", ""])
        writer.add_array("a.numbers", [1, -2, 3])
        writer.add_array("a.flags", [True, False])
        writer.add_bool("a.flag", True)
        writer.add_float64("a.double", 0.1)
        writer.add_int8("a.small", -3)
        writer.add_uint64("a.big", 2**63)

    write_gguf("all", path, edit=edit)
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            assert ours.metadata[key] == pytest.approx(field.contents()), key
    assert [(t.name, list(reversed(t.shape)), t.data_offset) for t in theirs.tensors] == [
        (t.name, list(t.shape), t.block.start) for t in ours.tensors.values()
    ]
