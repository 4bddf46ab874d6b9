"""Which kind of checkpoint a path is, and the hub where it is none."""

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

    Raises FileNotFoundError when there is no such path, ValueError when it is not a checkpoint or
    a damaged one, NotImplementedError when it is one of an unsupported kind.
    """
    if path.is_dir():
        if is_converted(path):
            raise ValueError(f"{path} is converted already; load it as it is")
        return _open_folder(path)
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; give a Hugging Face folder, a converted folder or a .gguf file"
        )
    with path.open("rb") as file:
        if path.suffix != ".gguf" and file.read(4) != b"GGUF":
            raise ValueError(
                f"{path} is not a checkpoint; give the folder that holds config.json, or a .gguf "
                "file"
            )
    from .gguf_source import open_gguf

    return open_gguf(path)


def expanded(path: str | Path) -> Path:
    """`path` with a leading `~` resolved, which a shell leaves alone in `--model=~/model`."""
    return Path(os.path.expanduser(path))


def local_path(name: str | Path) -> Path:
    """Return `name` as a path that exists, fetching it from the hub when it looks like a hub id.

    Raises FileNotFoundError when it neither exists nor can be fetched.
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
    except Exception as error:  # connection, authorisation, unknown name: a dozen classes
        raise FileNotFoundError(
            f"{name} does not exist here and cannot be fetched from the hub "
            f"({type(error).__name__}); give a local path, or check the name and the network"
        ) from error


def _open_folder(path: Path) -> Source:
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1 and not (path / "config.json").exists():
        raise ValueError(f"{path} is a folder with a GGUF file; give the file itself: {files[0]}")
    from .safetensors_source import open_folder

    return open_folder(path)
