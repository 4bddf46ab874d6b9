"""The format of converted folders: round trips, and errors that name the damage."""

import json

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from pagedjax.devices.mesh import make_mesh
from pagedjax.weights import checkpoint
from pagedjax.weights.params import ParamRule

BF16 = np.dtype(ml_dtypes.bfloat16)


def _rule(path, shape, spec=None):
    return ParamRule(path, shape, (), (), lambda sources: sources, spec or P(), "matrix")


RULES = (
    _rule(("embed",), (16, 8)),
    *(_rule(("layers", i, "down"), (4, 6), P(None, "tp")) for i in range(11)),
    _rule(("norm",), (8,)),
)


def _leaves(dtype=BF16):
    rng = np.random.default_rng(0)
    return [(rule, rng.standard_normal(rule.shape).astype(dtype)) for rule in RULES]


def _saved(folder, dtype=BF16, group_bytes=200):
    leaves = _leaves(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "GROUP_BYTES", group_bytes)
        checkpoint.save_leaves(folder, iter(leaves))
    checkpoint.write_marker(folder, dtype.name)
    return leaves


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    return folder, _saved(folder)


@pytest.mark.parametrize("group_bytes", [1, 2**30])
@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float16), np.dtype(np.float32)])
def test_groups_of_any_size_are_restored_bit_for_bit(tmp_path, monkeypatch, group_bytes, dtype):
    leaves = _saved(tmp_path, dtype, group_bytes)
    monkeypatch.setattr(checkpoint, "GROUP_BYTES", group_bytes)
    for (rule, expected), (again, found) in zip(
        leaves, checkpoint.read_leaves(tmp_path, RULES), strict=True
    ):
        assert again is rule and isinstance(found, np.ndarray) and found.dtype == dtype
        assert found.tobytes() == expected.tobytes()


def test_restore_places_every_leaf(saved):
    folder, leaves = saved
    mesh = make_mesh()
    tree = checkpoint.restore(folder, RULES, mesh)
    assert isinstance(tree["layers"], tuple) and len(tree["layers"]) == 11
    for rule, expected in leaves:
        leaf = tree
        for part in rule.path:
            leaf = leaf[part]
        assert isinstance(leaf, jax.Array) and leaf.dtype == BF16
        assert leaf.sharding == jax.sharding.NamedSharding(mesh, rule.spec)
        assert np.asarray(leaf).tobytes() == expected.tobytes()


def test_a_tree_that_does_not_fit_is_named(saved):
    folder, _ = saved
    changed = (*RULES[:5], _rule(("layers", 4, "down"), (4, 7)), *RULES[6:-1], _rule(("n",), (8,)))
    for read in (checkpoint.restore, lambda *args: list(checkpoint.read_leaves(*args))):
        with pytest.raises(ValueError) as error:
            read(folder, changed)
        for text in ("n is missing", "norm is unexpected", "layers/4/down has shape (4, 6)"):
            assert text in str(error.value)


def test_the_marker_file(saved, tmp_path):
    folder, _ = saved
    assert checkpoint.is_converted(folder) and checkpoint.read_marker(folder) == "bfloat16"
    assert not checkpoint.is_converted(tmp_path)
    for text, message in (
        ("{", "damaged"),
        ("[]", "damaged"),
        ("{}", "damaged"),
        (json.dumps({"format_version": 99, "dtype": "x", "files": {}}), "format version 99"),
    ):
        (tmp_path / checkpoint.MARKER).write_text(text)
        with pytest.raises(ValueError, match=message):
            checkpoint.read_marker(tmp_path)


def test_a_lost_or_shortened_file_is_named(tmp_path):
    _saved(tmp_path)
    largest = max((tmp_path / "params").rglob("d/*"), key=lambda path: path.stat().st_size)
    content = largest.read_bytes()
    largest.write_bytes(content[:-1])
    with pytest.raises(ValueError, match=f"{largest.name} has {len(content) - 1} bytes"):
        checkpoint.read_marker(tmp_path)
    largest.unlink()
    with pytest.raises(ValueError, match=f"{largest.name} is missing"):
        checkpoint.read_marker(tmp_path)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not a complete Orbax checkpoint"):
        checkpoint.restore(tmp_path, RULES)
