"""Read a safetensors file: 8 bytes of header length, a JSON header, then the tensor data.

The header is checked against the file size before any tensor is read, so that an incomplete
download is detected.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from .block import Block
from .source import TensorRef

DTYPES = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
# Bytes per element of the format's other types. A checkpoint may contain such tensors, such as old
# buffers, if its model does not use them.
OTHERS = {
    "F64": 8, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1,
    "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip


def read_safetensors(path: Path) -> dict[str, TensorRef]:
    """Return the tensors of the file `path` by name.

    Raises ValueError for a file that is not safetensors, is truncated or too long, or whose
    tensors overlap, and NotImplementedError for a data type of unknown size. Only F32, F16 and
    BF16 tensors can be read; `read` of the others raises NotImplementedError.
    """
    if not path.is_file():
        raise ValueError(f"{path} is a folder, not a safetensors file")
    header, start = _read_header(path)
    header.pop("__metadata__", None)
    end = 0
    # An empty tensor has the same begin as the next one, so sort by begin and end.
    for name, entry in sorted(header.items(), key=lambda item: _offsets(path, *item)):
        begin, stop = _offsets(path, name, entry)
        if begin != end:
            raise ValueError(
                f"{path}: tensor {name!r} begins at byte {begin} of the data, not at {end} where "
                "the previous one ends; the file is damaged"
            )
        end = stop
    _check_size(path, start + end)
    return {name: _tensor(path, start, name, entry) for name, entry in header.items()}


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header as a dict, and the offset at which the data begins."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise ValueError(
                f"{path} is truncated or not a safetensors file: it has {size} bytes and a header "
                f"length of {length}; fetch it again"
            )
        text = file.read(length)
    try:
        header = json.loads(text, object_pairs_hook=lambda pairs: _unique(path, pairs))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} has a header that is not UTF-8; fetch it again") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} has a header that is not JSON; fetch it again") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path} has a header that is not a JSON object; fetch it again")
    return header, 8 + length


def _unique(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"{path} has {', '.join(twice)} more than once")
    return entries


def _offsets(path: Path, name: str, entry: Any) -> tuple[int, int]:
    """Check a tensor's header entry; return its begin and end in the data."""
    try:
        begin, end = entry["data_offsets"]
        kind, shape = str(entry["dtype"]), entry["shape"]
        sound = all(isinstance(n, int) and n >= 0 for n in (begin, end, *shape)) and begin <= end
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound:
        raise ValueError(f"{path}: the header's entry of tensor {name!r} is invalid: {entry}")
    if kind not in DTYPES and kind not in OTHERS:
        _refuse(path, name, kind)
    size = OTHERS[kind] if kind in OTHERS else DTYPES[kind].itemsize
    if end - begin != math.prod(shape) * size:
        raise ValueError(
            f"{path}: tensor {name!r} of shape {shape} in {kind} cannot take {end - begin} bytes"
        )
    return begin, end


def _check_size(path: Path, expected: int) -> None:
    size = path.stat().st_size
    if size != expected:
        word = "truncated" if size < expected else "too long"
        raise ValueError(
            f"{path} is {word}: it has {size} bytes, but its header implies {expected}; fetch it "
            "again"
        )


def _tensor(path: Path, start: int, name: str, entry: dict[str, Any]) -> TensorRef:
    begin, end = _offsets(path, name, entry)
    shape, kind = tuple(entry["shape"]), entry["dtype"]
    if kind not in DTYPES:
        return TensorRef(shape, kind, lambda: _refuse(path, name, kind))
    block, dtype = Block(path, start + begin, end - begin), DTYPES[kind]
    return TensorRef(shape, dtype.name, lambda: block.read().view(dtype).reshape(shape))


def _refuse(path: Path, name: str, kind: str) -> NoReturn:
    raise NotImplementedError(
        f"{path}: tensor {name!r} has data type {kind!r}; supported: {', '.join(DTYPES)}"
    )
