"""The interface of checkpoint sources: tensor names, shapes and types, with data on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TensorRef:
    """One tensor of a source.

    shape: Hugging Face's shape; matrices are `[out, in]`.
    dtype: of the array that `read` returns ("float32", "float16" or "bfloat16"), or the file's
        name of a data type that cannot be read.
    read: reads (and dequantises) the tensor from its file at every call.
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]


@dataclass(frozen=True)
class Source:
    """A checkpoint of any supported kind, with Hugging Face's tensor names.

    config, generation_config: with the fields of `config.json` and `generation_config.json`.
    dtype: the data type that `dtype="auto"` selects for this source.
    load_tokenizer: returns the tokenizer, or None if the source has none.
    save_tokenizer: writes the tokenizer's files, if there are any, to a folder.
    """

    path: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any] | None
    tensors: Mapping[str, TensorRef]
    dtype: str
    load_tokenizer: Callable[[], Any]
    save_tokenizer: Callable[[Path], None]
