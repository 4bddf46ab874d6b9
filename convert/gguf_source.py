"""A GGUF file as a source: dequantised, with Hugging Face's names, shapes and row order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from pagedjax import models

from .gguf_config import ROPE_FACTORS, hf_config
from .gguf_file import GgufFile, GgufTensor, read_gguf
from .gguf_tokenizer import build_tokenizer
from .source import Source, TensorRef

# These types are kept; all others are dequantised to float32.
PLAIN = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
LAYER = re.compile(r"^blk\.(\d+)\.")


def open_gguf(path: Path) -> Source:
    """Describe the GGUF file `path` without reading any matrix.

    Raises ValueError for a damaged file and NotImplementedError for an unsupported architecture,
    quantisation or RoPE scaling.
    """
    file = read_gguf(path)
    family = _family(file)
    if file.metadata.get("split.count", 0) > 1:
        raise NotImplementedError(
            f"{path} is one of {file.metadata['split.count']} parts; join them into one file first"
        )
    _check_kinds(file)
    factors = file.tensors.get(ROPE_FACTORS)
    config = hf_config(
        file,
        architecture=family.GGUF_ARCHITECTURE,
        model_type=family.__name__.rpartition(".")[2],
        rope_factors=None if factors is None else _dequantised(factors),
    )
    dtype = _dtype(file)
    tokens = {name: config[name] for name in ("bos_token_id", "eos_token_id")}
    return Source(
        path=path,
        config=config | {"dtype": dtype},
        generation_config={name: each for name, each in tokens.items() if each is not None},
        tensors=_named(file, family, config),
        dtype=dtype,
        load_tokenizer=lambda: build_tokenizer(file),
        save_tokenizer=partial(_save_tokenizer, file),
    )


def unpermute(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo llama.cpp's permutation of query and key rows, `[num_heads * D, ...]`.

    llama.cpp interleaves the rows of the two halves of each head that RoPE pairs.
    """
    pairs = rows.reshape(num_heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _family(file: GgufFile) -> ModuleType:
    architecture = file.metadata.get("general.architecture")
    families = {
        module.GGUF_ARCHITECTURE: module
        for module in map(models.family, models.supported())
        if module.GGUF_ARCHITECTURE
    }
    if architecture not in families:
        raise NotImplementedError(
            f"{file.path} has the architecture {architecture!r}; "
            f"supported: {', '.join(map(repr, families))}"
        )
    return families[architecture]


def _check_kinds(file: GgufFile) -> None:
    """Dequantise a block of zeros of each type; NotImplementedError if a type is unsupported."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    for kind in sorted({tensor.kind for tensor in file.tensors.values()}):
        number = GGMLQuantizationType[kind]
        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[number][1]), np.uint8), number)
        except NotImplementedError as error:
            name = next(each.name for each in file.tensors.values() if each.kind == kind)
            raise NotImplementedError(
                f"{file.path}: tensor {name!r} has the type {kind}, which cannot be dequantised; "
                "make a GGUF file of another type, for example Q8_0 or F16"
            ) from error


def _dtype(file: GgufFile) -> str:
    kinds = {tensor.kind for tensor in file.tensors.values() if len(tensor.shape) > 1}
    return {("F32",): "float32", ("F16",): "float16"}.get(tuple(kinds), "bfloat16")


def _named(file: GgufFile, family: ModuleType, config: Mapping[str, Any]) -> dict[str, TensorRef]:
    """Tensors by their Hugging Face names; unknown names are kept, so that `bind` reports them."""
    heads = {
        name: config["num_attention_heads"] if name == "q_proj" else config["num_key_value_heads"]
        for name in family.GGUF_INTERLEAVED
    }
    tensors = {}
    for name, tensor in file.tensors.items():
        if name == ROPE_FACTORS:
            continue  # its values are in the config
        hf_name = _hf_name(name, family.GGUF_NAMES)
        num_heads = next((n for part, n in heads.items() if f".{part}." in hf_name), None)
        tensors[hf_name] = TensorRef(
            shape=tensor.shape,
            dtype=PLAIN[tensor.kind].name if tensor.kind in PLAIN else "float32",
            read=partial(_read, tensor, num_heads),
        )
    return tensors


def _hf_name(name: str, names: Mapping[str, str]) -> str:
    stem, _, kind = name.rpartition(".")
    layer = LAYER.match(name)
    key = LAYER.sub("blk.{}.", stem)
    if key not in names:
        return name
    return f"{names[key].format(layer[1] if layer else '')}.{kind}"


def _read(tensor: GgufTensor, num_heads: int | None) -> np.ndarray:
    array = _dequantised(tensor)
    return array if num_heads is None else unpermute(array, num_heads)


def _dequantised(tensor: GgufTensor) -> np.ndarray:
    data = tensor.block.read()
    if tensor.kind in PLAIN:
        return data.view(PLAIN[tensor.kind]).reshape(tensor.shape)
    from gguf import GGMLQuantizationType, dequantize

    rows = data.reshape(int(np.prod(tensor.shape[:-1])), -1)
    return dequantize(rows, GGMLQuantizationType[tensor.kind]).reshape(tensor.shape)


def _save_tokenizer(file: GgufFile, folder: Path) -> None:
    tokenizer = build_tokenizer(file)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
