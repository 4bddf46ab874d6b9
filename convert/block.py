"""A byte range of a file, read with pread, since a memory map would count as resident memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Block:
    """The `size` bytes of `path` that begin at `start`."""

    path: Path
    start: int
    size: int

    def read(self) -> np.ndarray:
        """Return a new uint8 array of `size` bytes; OSError if the file has become shorter."""
        data = np.empty(self.size, np.uint8)
        view = memoryview(data)
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            done = 0
            while done < self.size:
                got = os.preadv(descriptor, [view[done:]], self.start + done)
                if not got:
                    raise OSError(f"{self.path} was truncated while a tensor was read from it")
                done += got
        finally:
            os.close(descriptor)
        return data
