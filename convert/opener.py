"""Detect the kind of checkpoint at a path, and download hub ids."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pagedjax.weights.checkpoint import is_converted

from .source import Source

HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt")


def open_source(path: Path) -> Source:
    """Describe the Hugging Face folder or .gguf file `path` without reading any matrix.

    Raises FileNotFoundError if the path does not exist, ValueError if it is not a checkpoint or is
    damaged, and NotImplementedError if its kind is not supported.
    """
    if path.is_dir():
        if is_converted(path):
            raise ValueError(f"{path} is converted already; load it directly")
        return _open_folder(path)
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; give a Hugging Face folder, a converted folder or a .gguf file"
        )
    with path.open("rb") as file:
        if path.suffix != ".gguf" and file.read(4) != b"GGUF":
            raise ValueError(
                f"{path} is not a checkpoint; give the folder that contains config.json, or a "
                ".gguf file"
            )
    from .gguf_source import open_gguf

    return open_gguf(path)


def expanded(path: str | Path) -> Path:
    """Expand a leading `~`, which the shell does not expand in `--model=~/model`."""
    return Path(os.path.expanduser(path))


def local_path(name: str | Path) -> Path:
    """Return an existing path for `name`, downloaded from the hub if it looks like a hub id.

    Raises FileNotFoundError if it neither exists nor can be downloaded.
    """
    path = expanded(name)
    if path.exists():
        return path
    if not HUB_ID.match(str(name)):
        raise FileNotFoundError(
            f"{name} does not exist; give a converted folder, a Hugging Face folder, a .gguf file "
            "or a hub id (organisation/name)"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(name), allow_patterns=list(HUB_FILES)))
    except Exception as error:  # many classes: connection, authorisation, unknown name
        raise FileNotFoundError(
            f"{name} does not exist locally and cannot be fetched from the hub "
            f"({type(error).__name__}); give a local path, or check the name and the network"
        ) from error


def _open_folder(path: Path) -> Source:
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1 and not (path / "config.json").exists():
        raise ValueError(f"{path} is a folder with a GGUF file; give the file itself: {files[0]}")
    from .safetensors_source import open_folder

    return open_folder(path)
