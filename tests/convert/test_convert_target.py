"""The folder that a conversion writes: complete, or absent after any failure."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from pagedjax.convert import convert, load_checkpoint
from pagedjax.weights import checkpoint
from tests.support.hf_folders import names
from tests.support.tiny_models import write_hf_folder


def test_existing_target(tmp_path):
    write_hf_folder("base", tmp_path / "hf")
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="out exists"):
        convert(tmp_path / "hf", out, progress=False)
    assert names(out) == ["mine.txt"]
    convert(tmp_path / "hf", out, overwrite=True, progress=False)
    assert "mine.txt" not in names(out) and checkpoint.is_converted(out)
    assert names(tmp_path) == ["hf", "out"]
    with pytest.raises(ValueError, match="converted already"):
        convert(out, tmp_path / "again", progress=False)


@pytest.mark.parametrize("overwrite", [False, True])
def test_only_folders_are_replaced(tmp_path, overwrite):
    """Replacing a device such as /dev/null would remove it for every process."""
    write_hf_folder("base", tmp_path / "hf")
    (tmp_path / "file").write_text("keep")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("elsewhere")
    before = names(tmp_path)
    for target, what in (("file", "no folder"), ("pipe", "no folder"), ("link", "a link")):
        with pytest.raises(FileExistsError, match=f"{target}.* is {what}|{target} exists.*{what}"):
            convert(tmp_path / "hf", tmp_path / target, overwrite=overwrite, progress=False)
    assert (names(tmp_path), (tmp_path / "file").read_text()) == (before, "keep")


def test_a_mount_point_is_refused_before_any_work(tmp_path, monkeypatch):
    """A mount point cannot be renamed or replaced by a folder."""
    write_hf_folder("base", tmp_path / "hf")
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path).name == "disk")
    with pytest.raises(FileExistsError, match="disk is a mount point; name a folder within it"):
        convert(tmp_path / "hf", tmp_path / "disk", overwrite=True, progress=False)
    assert names(tmp_path / "disk") == []


@pytest.mark.parametrize("dots", [".", "sub/.."])
def test_the_working_folder_can_be_replaced(tmp_path, monkeypatch, dots):
    write_hf_folder("base", tmp_path / "hf")
    (tmp_path / "out" / "sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "out")
    convert(tmp_path / "hf", dots, overwrite=True, progress=False)
    assert checkpoint.is_converted(tmp_path / "out") and names(tmp_path) == ["hf", "out"]


@pytest.mark.parametrize("target", ["hf", "hf/out", "hf/a/b", "."])
def test_a_target_within_its_source_or_around_it_is_refused(tmp_path, target):
    write_hf_folder("base", tmp_path / "hf")
    with pytest.raises(ValueError, match="in each other"):
        convert(tmp_path / "hf", tmp_path / target, overwrite=True, progress=False)
    assert names(tmp_path / "hf") == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, OSError])
def test_a_failure_leaves_no_new_folder(tmp_path, monkeypatch, failure, existing):
    """After a failure half-way there is no new folder, and the old one is unchanged."""
    write_hf_folder("base", tmp_path / "hf")
    if existing:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "mine.txt").write_text("keep")
    real = checkpoint.ocp.partial.save
    calls = []

    def fail_at_third(*args, **kwargs):
        calls.append(args)
        if len(calls) == 3:
            raise failure("disk on fire")
        real(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "GROUP_BYTES", 1)
    monkeypatch.setattr(checkpoint.ocp.partial, "save", fail_at_third)
    target = tmp_path / "a" if existing else tmp_path / "a" / "b"
    with pytest.raises(failure):
        convert(tmp_path / "hf", target, overwrite=True, progress=False)
    assert len(calls) == 3
    assert names(tmp_path) == (["a", "hf"] if existing else ["hf"])
    if existing:
        assert names(tmp_path / "a") == ["mine.txt"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, SystemExit, OSError])
def test_a_failure_to_remove_the_old_folder_raises_nothing(tmp_path, monkeypatch, capsys, failure):
    """The new folder is in place; the rest of the old one is renamed, and a message names it."""
    write_hf_folder("base", tmp_path / "hf")
    (tmp_path / "out").mkdir()
    for name in ("one", "two"):
        (tmp_path / "out" / name).write_text("old")
    real = os.unlink
    removed = []

    def fail_at_second(path, **options):
        if Path(path).name in ("one", "two"):
            removed.append(path)
            if len(removed) == 2:
                raise failure
        real(path, **options)

    monkeypatch.setattr(os, "unlink", fail_at_second)
    convert(tmp_path / "hf", tmp_path / "out", overwrite=True, progress=False)
    assert len(removed) == 2 and checkpoint.is_converted(tmp_path / "out")
    rest, *others = names(tmp_path)
    assert rest.startswith(".out.half-removed-") and others == ["hf", "out"]
    assert len(names(tmp_path / rest)) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and str(tmp_path / rest) in said


@pytest.mark.parametrize("existing", [False, True])
def test_an_interrupt_just_after_the_new_folder_is_in_place(tmp_path, monkeypatch, existing):
    write_hf_folder("base", tmp_path / "hf")
    if existing:
        (tmp_path / "out").mkdir()
    real = Path.rename

    def interrupted(self, target):
        real(self, target)
        if Path(target).name == "out":
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", interrupted)
    convert(tmp_path / "hf", tmp_path / "out", overwrite=True, progress=False)
    assert checkpoint.is_converted(tmp_path / "out") and names(tmp_path) == ["hf", "out"]


def test_an_interrupt_just_after_the_old_folder_has_moved_puts_it_back(tmp_path, monkeypatch):
    write_hf_folder("base", tmp_path / "hf")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    real = Path.rename

    def interrupted(self, target):
        real(self, target)
        if self.name == "out":
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "hf", tmp_path / "out", overwrite=True, progress=False)
    assert names(tmp_path) == ["hf", "out"] and names(tmp_path / "out") == ["mine.txt"]


def test_verification_names_the_leaf(tmp_path, monkeypatch):
    write_hf_folder("base", tmp_path / "hf")
    real = checkpoint.read_leaves

    def with_one_flipped_bit(folder, rules):
        for rule, leaf in real(folder, rules):
            leaf = leaf.copy()
            if rule.name == "layers/1/o":
                leaf.view(np.uint32).reshape(-1)[7] ^= 1
            yield rule, leaf

    monkeypatch.setattr(checkpoint, "read_leaves", with_one_flipped_bit)
    with pytest.raises(ValueError, match="verification failed: layers/1/o"):
        convert(tmp_path / "hf", tmp_path / "out", verify=True, progress=False)
    assert names(tmp_path) == ["hf"]


def test_damaged_converted_folders(tmp_path):
    write_hf_folder("base", tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "out", progress=False)
    config = tmp_path / "out" / "config.json"
    text = config.read_text()
    config.write_text(json.dumps(json.loads(text) | {"num_hidden_layers": 3, "vocab_size": 127}))
    with pytest.raises(ValueError, match="embed has shape.*|layers/2/qkv is missing"):
        load_checkpoint(tmp_path / "out")
    config.unlink()
    with pytest.raises(FileNotFoundError, match="config.json"):
        load_checkpoint(tmp_path / "out")
    config.write_text(text)
    files = [path for path in (tmp_path / "out" / "params").rglob("*") if path.is_file()]
    os.truncate(max(files, key=lambda path: path.stat().st_size), 100)
    with pytest.raises(ValueError, match="has 100 bytes instead of"):
        load_checkpoint(tmp_path / "out")
