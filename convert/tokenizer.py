"""Find, copy and load the tokenizer files of a folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from .quiet_transformers import import_transformers

# Any of these files suffices for a tokenizer; the others in FILES are optional.
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json")
FILES = (
    *VOCABULARIES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
FOLDERS = ("additional_chat_templates",)


def has_tokenizer(folder: Path) -> bool:
    """Whether `folder` has a vocabulary file."""
    return any((folder / name).is_file() for name in VOCABULARIES)


def load_tokenizer(folder: Path) -> Any:
    """Return the `transformers` tokenizer of `folder`, or None if it has no vocabulary file.

    Raises ValueError if the files cannot be read.
    """
    if not has_tokenizer(folder):
        return None
    try:
        return import_transformers().AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the tokenizer libraries raise plain Exception
        raise ValueError(
            f"the tokenizer files in {folder} cannot be read "
            f"({type(error).__name__}: {_first_line(error)}); replace them, or remove them to work "
            "with token ids"
        ) from error


def copy_tokenizer(folder: Path, target: Path) -> None:
    """Copy every tokenizer and chat template file of `folder` to the folder `target`."""
    for name in FILES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, target / name)
    for name in FOLDERS:
        if (folder / name).is_dir():
            shutil.copytree(folder / name, target / name)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]
