"""Read the metadata and the tensor locations of a GGUF file.

The header is not read with the package `gguf`, which creates a Python object for every number
(seconds and hundreds of megabytes for a large vocabulary) and maps the file into memory.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .block import Block

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY, BOOL = 8, 9, 7
SCALARS = {
    0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4",
    6: "<f4", 7: "u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True)
class GgufTensor:
    """One tensor of the file.

    shape: `[out, in]`, the reverse of the order in the file.
    kind: name of the GGML type, e.g. "F32" or "Q4_1".
    block: the byte range of its data.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    block: Block


@dataclass(frozen=True)
class GgufFile:
    """The metadata by key, as Python values, and the tensors by name."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Read the header of the file `path`.

    Raises ValueError for a file that is not GGUF, is truncated or is inconsistent, and
    NotImplementedError for an unsupported version or byte order.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        reader = _Reader(path, file, size)
        _check_version(path, reader)
        num_tensors, num_entries = reader.number("<u8"), reader.number("<u8")
        metadata: dict[str, Any] = {}
        for _ in range(num_entries):
            key = reader.text()
            if key in metadata:
                raise ValueError(f"{path} has the metadata key {key!r} more than once")
            metadata[key] = reader.value(reader.number("<u4"))
        infos = [reader.tensor_info() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"{path} has general.alignment={alignment!r}; it is damaged")
        start = -(-file.tell() // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, shape, type_id, offset in infos:
        if name in tensors:
            raise ValueError(f"{path} has tensor {name!r} more than once")
        tensors[name] = _tensor(path, size, name, shape, type_id, start + offset)
    return GgufFile(path, metadata, tensors)


def _check_version(path: Path, reader: _Reader) -> None:
    if reader.take(4) != MAGIC:
        raise ValueError(f"{path} is not a GGUF file: it does not begin with GGUF")
    version = reader.number("<u4")
    if version not in VERSIONS:
        raise NotImplementedError(
            f"{path} is GGUF version {version}, or big-endian; supported: little-endian versions "
            f"{VERSIONS[0]} and {VERSIONS[1]}"
        )


def _tensor(
    path: Path, size: int, name: str, shape: tuple[int, ...], type_id: int, start: int
) -> GgufTensor:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType  # imported on demand

    try:
        kind = GGMLQuantizationType(type_id)
        per_block, block_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError) as error:
        raise NotImplementedError(
            f"{path}: tensor {name!r} has the unknown type {type_id}; a newer `gguf` may know it"
        ) from error
    if not shape or shape[-1] % per_block:
        raise ValueError(f"{path}: tensor {name!r} of shape {shape} cannot be of type {kind.name}")
    num_bytes = math.prod(shape) // per_block * block_bytes
    if start + num_bytes > size:
        raise ValueError(
            f"{path} is truncated: tensor {name!r} ends at byte {start + num_bytes}, the file at "
            f"{size}; fetch it again"
        )
    return GgufTensor(name, shape, kind.name, Block(path, start, num_bytes))


class _Reader:
    """Reads consecutive values from a file; raises ValueError at the end of the file."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self._path, self._file, self._left = path, file, size

    def take(self, count: int) -> bytes:
        self._left -= count
        if self._left < 0:
            raise ValueError(f"{self._path} is truncated: it ends in its header; fetch it again")
        return self._file.read(count)

    def number(self, dtype: str) -> int:
        return int.from_bytes(self.take(int(dtype[-1])), "little")

    def text(self) -> str:
        # Vocabulary entries may split a UTF-8 character, so invalid bytes must not be an error.
        return self.take(self.number("<u8")).decode("utf-8", errors="replace")

    def value(self, type_id: int) -> Any:
        if type_id == STRING:
            return self.text()
        if type_id == ARRAY:
            item, count = self.number("<u4"), self.number("<u8")
            if item in SCALARS:
                return self._numbers(item, count)
            return [self.value(item) for _ in range(count)]
        if type_id not in SCALARS:
            raise ValueError(f"{self._path} has metadata of unknown type {type_id}")
        return self._numbers(type_id, 1)[0]

    def _numbers(self, type_id: int, count: int) -> list[Any]:
        dtype = np.dtype(SCALARS[type_id])
        values = np.frombuffer(self.take(count * dtype.itemsize), dtype)
        if dtype == np.float32:
            # The shortest decimal that rounds to this float32: 1e-05, not 9.999999747378752e-06.
            return [float(str(value)) for value in values]
        return (values != 0).tolist() if type_id == BOOL else values.tolist()

    def tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name, num_dims = self.text(), self.number("<u4")
        dims = struct.unpack(f"<{num_dims}Q", self.take(8 * num_dims))
        return name, tuple(reversed(dims)), self.number("<u4"), self.number("<u8")
