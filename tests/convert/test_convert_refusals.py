"""Bad input to the converter: the right error in one line, and no files left behind."""

import numpy as np
import pytest

from pagedjax.convert import convert, load_checkpoint
from tests.support.gguf_files import write_gguf
from tests.support.hf_folders import names, same_params, write
from tests.support.tiny_models import hf_config, hf_tensors, write_hf_folder


def _refused(src, tmp_path, kind, *texts):
    """Check that `convert` raises `kind` with `texts` in one line and leaves no files."""
    before = names(tmp_path)
    with pytest.raises(kind) as error:
        convert(src, tmp_path / "new" / "out", progress=False)
    message = str(error.value)
    assert "\n" not in message
    for text in texts:
        assert text in message
    assert names(tmp_path) == before


def test_tensors_that_do_not_fit_are_all_named(tmp_path):
    """Errors come before any tensor is read or written."""
    tensors, config = hf_tensors("bias"), hf_config("bias")
    del tensors["lm_head.weight"]
    tensors["model.layers.0.foo.weight"] = np.zeros(3, np.float32)
    tensors["model.layers.1.mlp.up_proj.bias"] = np.zeros(7, np.float32)
    folder = write(tmp_path / "hf", tensors, **config)
    expected = (
        "missing: lm_head.weight",
        "unexpected: model.layers.0.foo.weight",
        "model.layers.1.mlp.up_proj.bias is (7,) instead of (96,)",
    )
    _refused(folder, tmp_path, ValueError, *expected)
    folder = write(tmp_path / "no_bias", hf_tensors("bias"), **config | {"mlp_bias": False})
    _refused(folder, tmp_path, ValueError, "unexpected: model.layers.0.mlp.down_proj.bias")
    folder = write(tmp_path / "bias", hf_tensors("base"), **config)
    _refused(folder, tmp_path, ValueError, "missing: model.layers.0.self_attn.q_proj.bias")
    tensors = hf_tensors("base")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.float64)
    folder = write(tmp_path / "f64", tensors, **hf_config("base"))
    said = "data type other than float32, float16, bfloat16: model.norm.weight is F64"
    _refused(folder, tmp_path, ValueError, said)


def test_buffers_are_skipped(tmp_path):
    """Buffers stored among the tensors are ignored."""
    zeros = np.zeros(4, np.float32)
    names = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
    buffers = {f"model.layers.{i}.self_attn.{name}": zeros for name in names for i in range(2)}
    buffers |= {"model.rotary_emb.inv_freq": zeros.astype(np.float64), "rope.freqs": zeros}
    write(tmp_path / "buffers", hf_tensors("base") | buffers, **hf_config("base"))
    write_hf_folder("base", tmp_path / "plain")
    with_them, without = (load_checkpoint(tmp_path / name)[1] for name in ("buffers", "plain"))
    assert same_params(with_them, without)


def test_bad_sources(tmp_path):
    """Damaged or missing sources."""
    write_hf_folder("base", tmp_path / "hf")
    weights = tmp_path / "hf" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-64])
    _refused(tmp_path / "hf", tmp_path, ValueError, "truncated", "model.safetensors")
    write_hf_folder("base", tmp_path / "shards", shards=2)
    (tmp_path / "shards" / "model-00002-of-00002.safetensors").unlink()
    _refused(tmp_path / "shards", tmp_path, FileNotFoundError, "model-00002-of-00002.safetensors")
    (tmp_path / "empty").mkdir()
    _refused(tmp_path / "empty", tmp_path, FileNotFoundError, "not a checkpoint")
    _refused(tmp_path / "nowhere", tmp_path, FileNotFoundError, "does not exist")
    (tmp_path / "notes.txt").write_text("hello")
    _refused(tmp_path / "notes.txt", tmp_path, ValueError, "not a checkpoint")
    write_gguf("base", tmp_path / "m.gguf")
    (tmp_path / "m.gguf").write_bytes((tmp_path / "m.gguf").read_bytes()[:-64])
    _refused(tmp_path / "m.gguf", tmp_path, ValueError, "truncated")


@pytest.mark.parametrize(
    ("entry", "kind", "text"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, NotImplementedError, "gptq"),
        ({"model_type": "mamba"}, NotImplementedError, "mamba"),
        ({"hidden_act": "gelu"}, NotImplementedError, "gelu"),
        ({"hidden_size": None}, ValueError, "hidden_size"),
        ({"num_attention_heads": 0}, ValueError, "num_heads=0"),
        ({"num_attention_heads": "8"}, ValueError, "num_heads='8'"),
    ],
)
def test_bad_configs(tmp_path, entry, kind, text):
    folder = write(tmp_path / "hf", hf_tensors("base"), **hf_config("base") | entry)
    _refused(folder, tmp_path, kind, text)


def test_unknown_paths_and_options(tmp_path, monkeypatch):
    import huggingface_hub

    def offline(name, **options):
        raise ConnectionError(f"no route\nto {name}")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(FileNotFoundError, match="cannot be fetched from the hub") as error:
        load_checkpoint("some-org/some-model")
    assert "\n" not in str(error.value)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_checkpoint(tmp_path / "nowhere")
    write_hf_folder("base", tmp_path / "hf")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: tmp_path / "hf")
    assert load_checkpoint("some-org/some-model")[0].vocab_size == 128
    with pytest.raises(ValueError, match="int3"):
        load_checkpoint(tmp_path / "hf", dtype="int3")
    with pytest.raises(ValueError, match="int3"):
        convert(tmp_path / "hf", tmp_path / "out", dtype="int3")
