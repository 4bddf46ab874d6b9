"""Conversion end to end: every kind of checkpoint gives the same params."""

import json

import jax
import ml_dtypes
import numpy as np
import pytest

from pagedjax.convert import convert, load_checkpoint
from tests.support.gguf_files import write_gguf
from tests.support.hf_folders import names, same_params, write
from tests.support.tiny_models import VARIANTS, hf_config, hf_tensors, write_hf_folder


@pytest.mark.parametrize("name", VARIANTS)
def test_all_kinds_give_the_same_params(tmp_path, name):
    """Heads, biases, tied embeddings and rope scaling of every variant."""
    write_hf_folder(name, tmp_path / "hf")
    write_hf_folder(name, tmp_path / "shards", shards=3)
    write_gguf(name, tmp_path / "m.gguf")
    convert(tmp_path / "hf", tmp_path / "from_hf", verify=True, progress=False)
    convert(tmp_path / "m.gguf", tmp_path / "from_gguf", verify=True, progress=False)
    config, params, tokenizer = load_checkpoint(tmp_path / "hf")
    assert tokenizer is None
    for other in ("shards", "m.gguf", "from_hf", "from_gguf"):
        other_config, other_params, _ = load_checkpoint(tmp_path / other)
        assert other_config == config, other
        assert same_params(params, other_params), other
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == sum(
        tensor.size for tensor in hf_tensors(name).values()
    )


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    """A shell does not expand the tilde in `--model=~/model`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    write_hf_folder("base", tmp_path / "hf")
    convert("~/hf", "~/out", progress=False)
    assert names(tmp_path) == ["hf", "out"]
    assert same_params(load_checkpoint("~/hf")[1], load_checkpoint("~/out")[1])
    with pytest.raises(FileNotFoundError, match="~nobody-here/x does not exist"):
        load_checkpoint("~nobody-here/x")


def test_params_hold_the_tensors(tmp_path):
    """The order within one layer's `qkv`: the query heads of a group, its key, its value."""
    write_hf_folder("bias", tmp_path)
    _, params, _ = load_checkpoint(tmp_path)
    tensors, layer, at = hf_tensors("bias"), params["layers"][1], "model.layers.1."
    q, k, v = (tensors[f"{at}self_attn.{x}_proj.weight"].reshape(-1, 8, 64) for x in "qkv")
    bias = tensors[f"{at}self_attn.q_proj.bias"].reshape(8, 8)
    for kv in range(2):
        assert np.array_equal(layer["qkv"][kv, :4], q[4 * kv : 4 * kv + 4])
        assert np.array_equal(layer["qkv"][kv, 4], k[kv])
        assert np.array_equal(layer["qkv"][kv, 5], v[kv])
        assert np.array_equal(layer["qkv_bias"][kv, :4], bias[4 * kv : 4 * kv + 4])
    assert np.array_equal(layer["gate_up"][1], tensors[f"{at}mlp.up_proj.weight"])
    assert np.array_equal(params["head"], tensors["lm_head.weight"])


@pytest.mark.parametrize("source", ["hf", "m.gguf"])
def test_files_of_the_converted_folder(tmp_path, source):
    write_hf_folder("all", tmp_path / "hf")
    (tmp_path / "hf" / "generation_config.json").write_text('{"eos_token_id": [5, 9], "top_k": 3}')
    write_gguf("all", tmp_path / "m.gguf")
    convert(tmp_path / source, tmp_path / "a" / "b" / "out", dtype="bfloat16", progress=False)
    out = tmp_path / "a" / "b" / "out"
    assert names(out) == ["config.json", "generation_config.json", "pagedjax.json", "params"]
    assert names(out.parent) == ["out"]
    config = json.loads((out / "config.json").read_text())
    assert (config["dtype"], config["tie_word_embeddings"]) == ("bfloat16", True)
    generation = json.loads((out / "generation_config.json").read_text())
    if source == "hf":
        assert generation == {"eos_token_id": [5, 9], "top_k": 3}
        assert load_checkpoint(out)[0].eos_token_ids == (5, 9)
        assert config == hf_config("all") | {"dtype": "bfloat16"}
    else:
        assert generation == {"bos_token_id": 1, "eos_token_id": 2}
        assert config["rope_parameters"] == hf_config("all")["rope_parameters"]


def test_tokenizer_files_are_copied(tmp_path):
    from tokenizers import Tokenizer, models

    write_hf_folder("base", tmp_path / "hf")
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    tokenizer.save(str(tmp_path / "hf" / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (tmp_path / "hf" / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "hf" / "chat_template.jinja").write_text("{{ messages|length }}!")
    (tmp_path / "hf" / "training.log").write_text("not to be copied")
    convert(tmp_path / "hf", tmp_path / "out", progress=False)
    assert not (tmp_path / "out" / "training.log").exists()
    for folder in ("hf", "out"):
        _, _, loaded = load_checkpoint(tmp_path / folder)
        assert loaded("a")["input_ids"] == [0]
        assert loaded.apply_chat_template([{}], tokenize=False) == "1!"
    (tmp_path / "hf" / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="tokenizer files in .* cannot be read"):
        load_checkpoint(tmp_path / "hf")


def test_bf16_keeps_its_bits(tmp_path):
    """Without torch: values are stored, converted and loaded bit for bit."""
    rng = np.random.default_rng(0)
    tensors = {
        name: rng.integers(0, 0x7F80, tensor.shape, np.uint16).view(ml_dtypes.bfloat16)
        for name, tensor in hf_tensors("base").items()
    }
    write(tmp_path / "hf", tensors, **hf_config("base") | {"dtype": "bfloat16"})
    convert(tmp_path / "hf", tmp_path / "out", verify=True, progress=False)
    for folder in ("hf", "out"):
        _, params, _ = load_checkpoint(tmp_path / folder)
        assert params["embed"].dtype == ml_dtypes.bfloat16
        assert (
            np.asarray(params["embed"]).tobytes() == tensors["model.embed_tokens.weight"].tobytes()
        )


def test_auto_dtype(tmp_path):
    """The config's `dtype` or `torch_dtype`, with or without `torch.`; else that of the tensors."""
    half = {name: tensor.astype(np.float16) for name, tensor in hf_tensors("base").items()}
    config = {key: value for key, value in hf_config("base").items() if key != "dtype"}
    for number, (entry, expected) in enumerate(
        (
            ({}, "float16"),
            ({"torch_dtype": "bfloat16"}, "bfloat16"),
            ({"torch_dtype": "torch.float32"}, "float32"),
        )
    ):
        loaded = load_checkpoint(write(tmp_path / str(number), half, **config, **entry))
        assert loaded[0].dtype == expected
        assert {leaf.dtype.name for leaf in jax.tree.leaves(loaded[1])} == {expected}
    folder = write(tmp_path / "other", half, **config, dtype="float64")
    with pytest.raises(ValueError, match="'float64'"):
        load_checkpoint(folder)
    assert load_checkpoint(folder, dtype="float16")[0].dtype == "float16"


def test_all_casts_round_alike(tmp_path):
    """Casting in the conversion and casting when loading give the same bits."""
    write_hf_folder("base", tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "as_is", progress=False)
    convert(tmp_path / "hf", tmp_path / "cast", dtype="bfloat16", progress=False)
    expected = load_checkpoint(tmp_path / "hf", dtype="bfloat16")
    for folder, dtype in (("as_is", "bfloat16"), ("cast", "auto")):
        config, params, _ = load_checkpoint(tmp_path / folder, dtype=dtype)
        assert config == expected[0] and config.dtype == "bfloat16"
        assert same_params(params, expected[1])


def test_values_too_large_for_float16(tmp_path):
    tensors = hf_tensors("base")
    tensors["model.layers.1.mlp.down_proj.weight"][3, 4] = 7e4
    tensors["model.norm.weight"][0] = np.inf  # infinite before the cast, so it is accepted
    write(tmp_path / "hf", tensors, **hf_config("base"))
    convert(tmp_path / "hf", tmp_path / "out", progress=False)
    with pytest.raises(ValueError, match=r"layers.1.mlp.down_proj.weight has 1 values.*70000"):
        convert(tmp_path / "hf", tmp_path / "half", dtype="float16", progress=False)
    with pytest.raises(ValueError, match="layers/1/down has 1 values"):
        load_checkpoint(tmp_path / "out", dtype="float16")
    assert names(tmp_path) == ["hf", "out"]


def test_tied_embeddings(tmp_path):
    """Loaded as transformers 5 does (checked with torch)."""
    tensors, config = hf_tensors("tied"), hf_config("tied")
    embed = tensors["model.embed_tokens.weight"]
    other = np.ascontiguousarray(embed[::-1])
    rest = {name: each for name, each in tensors.items() if each is not embed}
    both = tensors | {"lm_head.weight": embed.copy()}
    found, params, _ = load_checkpoint(write(tmp_path / "both", both, **config))
    assert found.tie_word_embeddings and "head" not in params
    folder = write(tmp_path / "differ", tensors | {"lm_head.weight": other}, **config)
    convert(folder, tmp_path / "out", progress=False)
    for path in (folder, tmp_path / "out"):
        found, params, _ = load_checkpoint(path)
        assert not found.tie_word_embeddings
        assert np.array_equal(params["embed"], embed) and np.array_equal(params["head"], other)
    assert (
        json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False
    )
    folder = write(tmp_path / "only_head", rest | {"lm_head.weight": embed}, **config)
    found, params, _ = load_checkpoint(folder)
    assert found.tie_word_embeddings and np.array_equal(params["embed"], embed)
