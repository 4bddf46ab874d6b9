"""Checkpoints whose tensor names have one prefix too many, or lack `model.`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagedjax.convert import load_checkpoint
from tests.support.hf_folders import same_params, write
from tests.support.tiny_models import hf_config, hf_tensors, write_hf_folder


def renamed(folder: Path, variant: str, **changes: str) -> Path:
    """A folder of `variant` in which each name's first part is changed."""
    tensors = hf_tensors(variant)
    for old, new in changes.items():
        old = old.replace("_", ".") if old != "all" else ""
        tensors = {
            new + name.removeprefix(old) if name.startswith(old) else name: each
            for name, each in tensors.items()
        }
    return write(folder, tensors, **hf_config(variant))


@pytest.mark.parametrize(
    "prefix", ["_orig_mod.", "module.", "language_model.", "module._orig_mod.", "model.lm."]
)
@pytest.mark.parametrize("variant", ["base", "tied"])
def test_one_prefix_on_every_tensor_is_recognised(
    tmp_path: Path, prefix: str, variant: str
) -> None:
    folder = renamed(tmp_path / "prefixed", variant, all=prefix)
    write_hf_folder(variant, tmp_path / "plain")
    assert same_params(load_checkpoint(folder)[1], load_checkpoint(tmp_path / "plain")[1])


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
def test_a_bare_base_model_is_recognised_where_embeddings_are_tied(
    tmp_path: Path, prefix: str
) -> None:
    folder = renamed(tmp_path / "bare", "tied", model_=prefix)
    write_hf_folder("tied", tmp_path / "plain")
    assert same_params(load_checkpoint(folder)[1], load_checkpoint(tmp_path / "plain")[1])


def test_a_bare_base_model_with_an_untied_head_lacks_the_head(tmp_path: Path) -> None:
    tensors = hf_tensors("base")
    del tensors["lm_head.weight"]
    bare = {name.removeprefix("model."): each for name, each in tensors.items()}
    with pytest.raises(ValueError, match="missing: lm_head.weight"):
        load_checkpoint(write(tmp_path / "bare", bare, **hf_config("base")))


def test_mixed_prefixes_are_refused_by_name(tmp_path: Path) -> None:
    tensors = hf_tensors("base")
    mixed = {name if "norm" in name else f"module.{name}": each for name, each in tensors.items()}
    with pytest.raises(ValueError, match=r"lack its prefix 'module\.': model\..*norm.* more"):
        load_checkpoint(write(tmp_path / "mixed", mixed, **hf_config("base")))


def test_a_byte_order_mark_before_the_config_is_ignored(tmp_path: Path) -> None:
    folder = write(tmp_path / "bom", hf_tensors("base"), **hf_config("base"))
    text = json.dumps(hf_config("base"))
    (folder / "config.json").write_bytes(b"\xef\xbb\xbf" + text.encode())
    write_hf_folder("base", tmp_path / "plain")
    assert same_params(load_checkpoint(folder)[1], load_checkpoint(tmp_path / "plain")[1])
