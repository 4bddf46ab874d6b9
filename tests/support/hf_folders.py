"""Hugging Face folders with given tensors, and comparisons of the params loaded from them."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from pagedjax.weights.params import flatten_tree


def write(folder: Path, tensors: dict[str, np.ndarray], **config) -> Path:
    """Write a Hugging Face folder of only these tensors and config entries; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def same_params(one, two) -> bool:
    """Whether two params trees agree in structure, types and every bit."""
    one, two = flatten_tree(one), flatten_tree(two)
    return one.keys() == two.keys() and all(
        one[path].dtype == two[path].dtype
        and np.asarray(one[path]).tobytes() == np.asarray(two[path]).tobytes()
        for path in one
    )


def names(folder: Path) -> list[str]:
    """Names of all files in `folder`, including hidden ones."""
    return sorted(path.name for path in folder.iterdir())
