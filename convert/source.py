"""What the converter reads from: names, shapes and types first, the bytes of a tensor on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TensorRef:
    """One tensor of a source.

    shape: as Hugging Face has it, matrices `[out, in]`.
    dtype: of the array that `read` returns ("float32", "float16" or "bfloat16"); or the file's
        name of a data type that cannot be read.
    read: reads (and dequantises) the tensor from its file, each time it is called.
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]


@dataclass(frozen=True)
class Source:
    """A checkpoint of any supported kind, under Hugging Face's names.

    config, generation_config: as `config.json` and `generation_config.json` hold them.
    dtype: what `dtype="auto"` means for this source.
    load_tokenizer: makes the tokenizer, or returns None where the source has none.
    save_tokenizer: writes the tokenizer's files into a folder, if there is one.
    """

    path: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any] | None
    tensors: Mapping[str, TensorRef]
    dtype: str
    load_tokenizer: Callable[[], Any]
    save_tokenizer: Callable[[Path], None]
