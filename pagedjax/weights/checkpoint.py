"""The converted folder: config and tokenizer files as Hugging Face names them, params in Orbax.

    config.json  generation_config.json  tokenizer files ...
    pagedjax.json     the marker: format version, data type, sizes of the files of params/
    params/           Orbax, the params tree with tuple indices as text keys

Params are written group by group, so neither writing nor reading holds more than a group of leaves
on the host.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint.experimental.v1 as ocp
from jax.sharding import Mesh

from pagedjax.devices.mesh import make_mesh, sharding
from pagedjax.weights.params import ParamRule, Params, build_tree, check_params, flatten_tree
from pagedjax.weights.params import Path as LeafPath

MARKER = "pagedjax.json"
PARAMS = "params"
FORMAT_VERSION = 1
# Orbax's partial saves cost time quadratic in their number and memory linear in their size.
GROUP_BYTES = 128 * 2**20


def is_converted(folder: Path) -> bool:
    """Whether `folder` was written by `pagedjax.convert`, of any format version."""
    return (folder / MARKER).is_file()


def write_marker(folder: Path, dtype: str) -> None:
    """Mark `folder` as converted and complete, with all leaves in `dtype`; the last thing to do."""
    marker = {"format_version": FORMAT_VERSION, "dtype": dtype, "files": _sizes(folder)}
    (folder / MARKER).write_text(json.dumps(marker, indent=2) + "\n")


def read_marker(folder: Path) -> str:
    """Return the data type of the leaves of a converted folder.

    Raises ValueError for an unreadable marker, another format version, or a file below `params/`
    that is missing or has another size than it was written with.
    """
    try:
        marker = json.loads((folder / MARKER).read_text())
        version, dtype, files = (marker[name] for name in ("format_version", "dtype", "files"))
        expected = dict(files)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / MARKER} is damaged; convert the checkpoint again") from error
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{folder} has format version {version}, this pagedjax reads {FORMAT_VERSION}; "
            "convert the checkpoint again"
        )
    found = _sizes(folder)
    for name, size in expected.items():
        if found.get(name) != size:
            state = f"has {found[name]} bytes instead of {size}" if name in found else "is missing"
            raise ValueError(f"{folder / name} {state}; convert the checkpoint again")
    return dtype


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of every file below `params/`, because Orbax misses a file that was cut short."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted((folder / PARAMS).rglob("*"))
        if path.is_file()
    }


def save_leaves(folder: Path, leaves: Iterable[tuple[ParamRule, np.ndarray]]) -> None:
    """Write `leaves` to a new Orbax checkpoint below `folder`, taking one group at a time."""
    target = _params_path(folder)
    for group in _grouped(leaves, lambda leaf: leaf[1].nbytes):
        tree = _text_tree({rule.path: array for rule, array in group})
        _run(partial(ocp.partial.save, target, tree))
        del group, tree
    _run(lambda: ocp.partial.finalize(target))


def read_leaves(folder: Path, rules: Sequence[ParamRule]) -> Iterator[tuple[ParamRule, np.ndarray]]:
    """Yield every leaf of a converted folder as a host array of the stored type, in rule order.

    Raises ValueError when the stored tree is not the one that `rules` describe.
    """
    stored = _checked_metadata(folder, rules)
    everywhere = dict.fromkeys(stored, ocp.PLACEHOLDER)
    for group in _grouped(rules, lambda rule: _num_bytes(stored[rule.path])):
        wanted = {rule.path: np.empty(0, stored[rule.path].dtype) for rule in group}
        leaves = _load(folder, everywhere | wanted)
        for rule in group:
            yield rule, leaves.pop(rule.path)


def restore(folder: Path, rules: Sequence[ParamRule], mesh: Mesh | None = None) -> Params:
    """Load the whole params tree onto the devices of `mesh`, each leaf sharded as its rule says.

    Leaves keep the stored type. Raises ValueError when the stored tree is not the one that `rules`
    describe, naming the leaves.
    """
    stored = _checked_metadata(folder, rules)
    mesh = make_mesh(mesh)
    abstract = {
        rule.path: jax.ShapeDtypeStruct(
            rule.shape, stored[rule.path].dtype, sharding=sharding(mesh, rule.spec)
        )
        for rule in rules
    }
    leaves = _load(folder, abstract)
    return build_tree({rule.path: leaves[rule.path] for rule in rules})


def _run(action: Callable[[], Any]) -> Any:
    """Call `action` in a thread, with our Orbax options, and wait until it has ended.

    An interrupt arrives in the main thread. If that were inside Orbax, its own threads would go on
    writing into a folder that the caller is about to remove.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_with_options, action).result()


def _with_options(action: Callable[[], Any]) -> Any:
    # Compression would take six times as long. Saves are awaited one by one, so nobody can write
    # to the arrays meanwhile and Orbax need not copy them first.
    context = ocp.Context()
    context.array.saving.use_compression = False
    context.memory.deepcopy_host_arrays = False
    with context:
        return action()


def _load(folder: Path, abstract: Mapping[LeafPath, Any]) -> dict[LeafPath, Any]:
    tree = _text_tree(abstract)
    return _leaves_by_path(_run(lambda: ocp.load(_params_path(folder), tree)))


def _params_path(folder: Path) -> Path:
    return (folder / PARAMS).resolve()


def _checked_metadata(folder: Path, rules: Sequence[ParamRule]) -> dict[LeafPath, Any]:
    """What is stored per leaf (shape, dtype), after comparing it with the rules."""
    try:
        stored = _leaves_by_path(_run(lambda: ocp.metadata(_params_path(folder))).metadata)
    except (OSError, ValueError, LookupError, AttributeError) as error:
        raise ValueError(
            f"{folder / PARAMS} is not a complete Orbax checkpoint; convert the checkpoint again"
        ) from error
    check_params(rules, build_tree(stored))
    return stored


def _grouped(items: Iterable[Any], num_bytes: Any) -> Iterator[list[Any]]:
    group, size = [], 0
    for item in items:
        group.append(item)
        size += num_bytes(item)
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _num_bytes(leaf: Any) -> int:
    return int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize


def _text_tree(leaves: Mapping[LeafPath, Any]) -> dict[str, Any]:
    """Nest by path with text keys: groups of layers can then be saved apart, tuples could not."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        level = tree
        for part in path[:-1]:
            level = level.setdefault(str(part), {})
        level[str(path[-1])] = leaf
    return tree


def _leaves_by_path(tree: Any) -> dict[LeafPath, Any]:
    return {
        tuple(int(part) if str(part).isdigit() else part for part in path): leaf
        for path, leaf in flatten_tree(tree).items()
    }
