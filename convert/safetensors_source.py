"""A Hugging Face folder as a source: config.json, one or several safetensors files, tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pagedjax.config import DTYPES

from .safetensors_file import read_safetensors
from .source import Source, TensorRef
from .tokenizer import copy_tokenizer, load_tokenizer

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"


def open_folder(folder: Path) -> Source:
    """Describe the Hugging Face folder `folder` without reading any tensor.

    Raises FileNotFoundError for a missing file, ValueError for a damaged one and
    NotImplementedError for weights in another format.
    """
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(
            f"{folder} has no {CONFIG}, so it is not a checkpoint; give a Hugging Face folder with "
            "safetensors, a converted folder or a .gguf file"
        )
    config = read_json(folder / CONFIG)
    generation = folder / GENERATION_CONFIG
    tensors = _read_weights(folder)
    return Source(
        path=folder,
        config=config,
        generation_config=read_json(generation) if generation.is_file() else None,
        tensors=tensors,
        dtype=_dtype(config, tensors),
        load_tokenizer=lambda: load_tokenizer(folder),
        save_tokenizer=lambda target: copy_tokenizer(folder, target),
    )


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in the file `path`; raises ValueError if it is not one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))  # without a byte order mark
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} does not contain a JSON object")
    return value


def _read_weights(folder: Path) -> dict[str, TensorRef]:
    if (folder / WEIGHTS).exists():  # an index beside it is of shards it replaced
        return read_safetensors(folder / WEIGHTS)
    if (folder / INDEX).is_file():
        return _read_shards(folder)
    others = sorted(folder.glob("*.safetensors"))
    if len(others) == 1:
        return read_safetensors(others[0])
    if others:
        raise FileNotFoundError(
            f"{folder} has {len(others)} safetensors files but no {INDEX} that lists their tensors"
        )
    pickles = sorted(
        path.name for suffix in ("bin", "pth", "pt") for path in folder.glob(f"*.{suffix}")
    )
    if pickles:
        raise NotImplementedError(
            f"{folder} has its weights in {pickles[0]}, which is not supported; "
            "supported: safetensors and GGUF"
        )
    raise FileNotFoundError(f"{folder} has no weights: neither {WEIGHTS} nor {INDEX}")


def _read_shards(folder: Path) -> dict[str, TensorRef]:
    """Return the tensors of all shards after comparing every shard with the index."""
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{folder / INDEX} has no 'weight_map'")
    if not all(isinstance(name, str) for name in weight_map.values()):
        raise ValueError(f"{folder / INDEX} has a shard name that is not a string")
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise FileNotFoundError(
            f"{folder} has no {', '.join(missing)}, which {INDEX} lists; fetch it again"
        )
    tensors: dict[str, TensorRef] = {}
    for shard in names:
        for name, tensor in read_safetensors(folder / shard).items():
            if name in tensors:
                raise ValueError(f"{folder / shard} and another shard both hold tensor {name!r}")
            tensors[name] = tensor
            if weight_map.get(name, shard) != shard:
                raise ValueError(
                    f"{folder / shard} has tensor {name!r}, which {INDEX} places in "
                    f"{weight_map[name]}"
                )
    absent = [f"{name!r} ({weight_map[name]})" for name in weight_map if name not in tensors]
    if absent:
        raise ValueError(f"{folder}: {INDEX} lists tensors that no shard has: {', '.join(absent)}")
    return tensors


def _dtype(config: dict[str, Any], tensors: dict[str, TensorRef]) -> str:
    named = config.get("dtype") or config.get("torch_dtype")
    if named is not None:
        return str(named).removeprefix("torch.")
    kinds = {tensor.dtype for tensor in tensors.values()} & set(DTYPES)
    return kinds.pop() if len(kinds) == 1 else "float32"
