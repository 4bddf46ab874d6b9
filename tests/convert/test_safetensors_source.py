"""The safetensors reader: accepted files, and error messages of refused ones."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest

from pagedjax.convert.safetensors_file import read_safetensors
from pagedjax.convert.safetensors_source import open_folder
from tests.support.tiny_models import hf_tensors, write_hf_folder


def _write(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def _entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_bf16_bits(tmp_path):
    """The bytes 80 3F 20 C0 are 1.0 and -2.5."""
    path = _write(
        tmp_path / "x.safetensors",
        {"a": _entry("BF16", [2], 0, 4), "__metadata__": {"format": "pt"}},
        bytes([0x80, 0x3F, 0x20, 0xC0]),
    )
    tensor = read_safetensors(path)["a"]
    assert (tensor.dtype, tensor.shape) == ("bfloat16", (2,))
    assert tensor.read().dtype == ml_dtypes.bfloat16
    assert tensor.read().astype(np.float32).tolist() == [1.0, -2.5]


def test_types_scalars_and_empty_tensors(tmp_path):
    data = np.float32(3).tobytes() + np.array([1, 2], np.float16).tobytes()
    header = {
        "half": _entry("F16", [2, 1], 4, 8),
        "empty": _entry("F32", [0, 7], 4, 4),
        "scalar": _entry("F32", [], 0, 4),
    }
    tensors = read_safetensors(_write(tmp_path / "x.safetensors", header, data))
    assert tensors["scalar"].read().tolist() == 3.0
    assert tensors["half"].read().tolist() == [[1.0], [2.0]]
    assert tensors["empty"].read().shape == (0, 7)


def test_files_written_by_the_library_are_read(tmp_path):
    write_hf_folder("all", tmp_path)
    tensors = read_safetensors(tmp_path / "model.safetensors")
    expected = hf_tensors("all")
    assert tensors.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(tensors[name].read(), array)


A = _entry("F32", [1], 0, 4)
BAD_HEADERS = {
    "not JSON": (b"{nope", b"", "not JSON"),
    "not UTF-8": (b'{"\xff": 1}', b"", "UTF-8"),
    "a list": ([1], b"", "object"),
    "twice": (b'{"a": {}, "a": {}}', b"", "a more than once"),
    "overlap": ({"a": A, "b": _entry("F32", [1], 2, 6)}, bytes(6), "'b'"),
    "gap": ({"a": A, "b": _entry("F32", [1], 8, 12)}, bytes(12), "'b'"),
    "wrong bytes": ({"a": _entry("F32", [2], 0, 4)}, bytes(4), "'a' of shape"),
    "reversed": ({"a": _entry("F32", [1], 4, 0)}, bytes(4), "'a'"),
    "negative": ({"a": _entry("F32", [-1], 0, 4)}, bytes(4), "'a'"),
    "no offsets": ({"a": {"dtype": "F32", "shape": [1]}}, bytes(4), "'a'"),
    "short": ({"a": A}, bytes(3), "truncated"),
    "long": ({"a": A}, bytes(5), "too long"),
}


@pytest.mark.parametrize("kind", BAD_HEADERS)
def test_bad_files_are_refused(tmp_path, kind):
    header, data, message = BAD_HEADERS[kind]
    with pytest.raises(ValueError, match=message) as error:
        read_safetensors(_write(tmp_path / "x.safetensors", header, data))
    assert "\n" not in str(error.value) and "x.safetensors" in str(error.value)


@pytest.mark.parametrize("content", [b"", b"abc", struct.pack("<Q", 2**60) + b"{}"])
def test_files_without_a_whole_header(tmp_path, content):
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="truncated"):
        read_safetensors(tmp_path / "x.safetensors")


def test_other_types_are_named(tmp_path):
    path = _write(tmp_path / "x.safetensors", {"a": _entry("F4", [4], 0, 2)}, bytes(2))
    with pytest.raises(NotImplementedError, match="'a' has data type 'F4'.*F32, F16, BF16"):
        read_safetensors(path)
    path = _write(tmp_path / "y.safetensors", {"a": _entry("F8_E4M3", [4], 0, 4)}, bytes(4))
    tensor = read_safetensors(path)["a"]
    with pytest.raises(NotImplementedError, match="'a' has data type 'F8_E4M3'.*F32, F16, BF16"):
        tensor.read()
    path = _write(tmp_path / "z.safetensors", {"a": _entry("I64", [4], 0, 31)}, bytes(31))
    with pytest.raises(ValueError, match=r"'a' of shape \[4\] in I64 cannot take 31 bytes"):
        read_safetensors(path)


def test_every_truncation_is_detected(tmp_path):
    """Truncated at several lengths."""
    write_hf_folder("base", tmp_path)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    for size in (len(content) - 64, len(content) - 1, len(content) // 2, 100, 8, 7, 1):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match="truncated"):
            open_folder(tmp_path)


def test_shards_equal_one_file(tmp_path):
    write_hf_folder("base", tmp_path / "one")
    write_hf_folder("base", tmp_path / "three", shards=3)
    one, three = open_folder(tmp_path / "one").tensors, open_folder(tmp_path / "three").tensors
    assert one.keys() == three.keys()
    assert all(np.array_equal(one[name].read(), three[name].read()) for name in one)


def test_one_file_takes_precedence_over_shards(tmp_path):
    """transformers also prefers the single file."""
    write_hf_folder("base", tmp_path, shards=2)
    write_hf_folder("bias", tmp_path / "new")
    (tmp_path / "new" / "model.safetensors").rename(tmp_path / "model.safetensors")
    assert any("q_proj.bias" in name for name in open_folder(tmp_path).tensors)


def test_missing_shard_is_named(tmp_path):
    """An index refers to a shard that does not exist."""
    write_hf_folder("base", tmp_path, shards=2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="model-00002-of-00002.safetensors"):
        open_folder(tmp_path)


def _index(folder, change):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def test_index_and_shards_must_agree(tmp_path):
    first, second = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    write_hf_folder("base", tmp_path, shards=2)
    _index(tmp_path, lambda names: names.update(ghost=first))
    with pytest.raises(ValueError, match="'ghost'"):
        open_folder(tmp_path)
    _index(tmp_path, lambda names: (names.pop("ghost"), names.update({"lm_head.weight": second})))
    with pytest.raises(ValueError, match="lm_head.weight"):
        open_folder(tmp_path)
    (tmp_path / second).write_bytes((tmp_path / first).read_bytes())
    with pytest.raises(ValueError, match="another shard both hold|places in"):
        open_folder(tmp_path)


def test_a_folder_called_safetensors(tmp_path):
    write_hf_folder("base", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(ValueError, match="folder"):
        open_folder(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth"])
def test_pickles_are_refused(tmp_path, name):
    write_hf_folder("base", tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / name)
    with pytest.raises(NotImplementedError, match=f"{name}.*safetensors and GGUF"):
        open_folder(tmp_path)


def test_folders_without_a_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match="not a checkpoint"):
        open_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="no weights"):
        open_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        open_folder(tmp_path)
