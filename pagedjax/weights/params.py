"""How a family describes its params: one rule per leaf, from which everything else derives.

Loading, random initialisation, shardings and shape checks all read the same list of rules, so
the structure of the params tree is written down once, in the family's module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, PartitionSpec
from jax.typing import DTypeLike

from pagedjax.config import DTYPES
from pagedjax.devices.mesh import sharding

Path = tuple[str | int, ...]
Params = dict[str, Any]


@dataclass(frozen=True)
class ParamRule:
    """One leaf of the params tree and the Hugging Face tensors that it is made of.

    path: where the leaf sits, e.g. ("layers", 3, "qkv").
    shape: of the leaf.
    sources: names of the Hugging Face tensors, in the order that `assemble` takes them.
    source_shapes: the shape that each source must have.
    assemble: reshapes and joins the sources; never changes a value.
    spec: how the leaf is divided over the mesh.
    kind: "matrix", "norm" or "bias"; decides the random initialisation.
    """

    path: Path
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    source_shapes: tuple[tuple[int, ...], ...]
    assemble: Callable[[Sequence[Any]], Any]
    spec: PartitionSpec
    kind: str

    @property
    def name(self) -> str:
        """The path as text, e.g. `layers/3/qkv`."""
        return "/".join(str(part) for part in self.path)


def build_tree(leaves: Mapping[Path, Any]) -> Params:
    """Nest leaves by path; a level whose keys are ints becomes a tuple."""
    grouped: dict[str | int, dict[Path, Any]] = {}
    for path, leaf in leaves.items():
        grouped.setdefault(path[0], {})[path[1:]] = leaf
    level = {key: inner[()] if () in inner else build_tree(inner) for key, inner in grouped.items()}
    if all(isinstance(key, int) for key in level):
        return tuple(level[index] for index in range(len(level)))  # type: ignore[return-value]
    return level  # type: ignore[return-value]


def flatten_tree(tree: Any, prefix: Path = ()) -> dict[Path, Any]:
    """The inverse of `build_tree`."""
    if isinstance(tree, Mapping):
        items: Any = tree.items()
    elif isinstance(tree, tuple | list):
        items = enumerate(tree)
    else:
        return {prefix: tree}
    leaves: dict[Path, Any] = {}
    for key, inner in items:
        leaves.update(flatten_tree(inner, (*prefix, key)))
    return leaves


def check_params(rules: Sequence[ParamRule], params: Params) -> None:
    """Raise ValueError naming every leaf that is missing, unexpected or wrongly shaped."""
    leaves = flatten_tree(params)
    expected = {rule.path: rule for rule in rules}
    problems = [f"{rule.name} is missing" for rule in rules if rule.path not in leaves]
    for path, leaf in leaves.items():
        if path not in expected:
            problems.append(f"{'/'.join(map(str, path))} is unexpected")
        elif tuple(leaf.shape) != expected[path].shape:
            problems.append(
                f"{expected[path].name} has shape {tuple(leaf.shape)}, not {expected[path].shape}"
            )
    if problems:
        raise ValueError("params do not fit the model config: " + "; ".join(problems))


def check_alive(params: Params) -> None:
    """Raise RuntimeError naming a leaf that was deleted, for example by donation elsewhere."""
    dead = [path for path, leaf in flatten_tree(params).items() if leaf.is_deleted()]
    if dead:
        raise RuntimeError(
            f"params leaf {'/'.join(map(str, dead[0]))} was deleted (donated to another "
            "computation?); give the engine live ones with update_params"
        )


def check_arrays(params: Params) -> None:
    """Raise TypeError naming a leaf that is not a jax.Array, ValueError for mixed dtypes."""
    leaves = flatten_tree(params)
    for path, leaf in leaves.items():
        if _is_of_nnx(leaf):
            raise TypeError(
                f"params leaf {'/'.join(map(str, path))} is a {type(leaf).__name__} of flax.nnx; "
                "give the arrays within: nnx.to_pure_dict(state), or variable[...] for one"
            )
        if not isinstance(leaf, jax.Array):
            raise TypeError(
                f"params leaf {'/'.join(map(str, path))} is a {type(leaf).__name__}; "
                "put the tree on the device first, with jax.device_put"
            )
    dtypes = sorted({str(leaf.dtype) for leaf in leaves.values()})
    if len(dtypes) > 1 or dtypes[0] not in DTYPES:
        raise ValueError(
            f"params have dtypes {', '.join(dtypes)}; supported: one of {', '.join(DTYPES[1:])}"
        )


def _is_of_nnx(leaf: Any) -> bool:
    # By name, as importing flax.nnx takes long.
    return any(cls.__module__.startswith("flax.nnx") for cls in type(leaf).__mro__)


def device_of(params: Params) -> jax.Device | None:
    """The device that all leaves are on; None if they are on several."""
    devices = {device for leaf in flatten_tree(params).values() for device in leaf.devices()}
    return devices.pop() if len(devices) == 1 else None


def placed(params: Params, mesh: Mesh) -> Params:
    """The leaves as programs of `mesh` take them, in dicts and tuples, without copying any.

    Programs tell a list from a tuple and a FrozenDict from a dict, which the user may give. An
    array on an Explicit mesh has that mesh in its type, which no other mesh's programs take.
    Raises ValueError naming a leaf that is on other devices.
    """
    wanted = set(mesh.devices.flat)
    leaves = flatten_tree(params)
    for path, leaf in leaves.items():
        if leaf.devices() != wanted:
            raise ValueError(
                f"params leaf {'/'.join(map(str, path))} is on {_listed(leaf.devices())} and the "
                f"engine on {_listed(wanted)}; move the params with jax.device_put, or give the "
                "engine a mesh of their device"
            )
        if _is_explicit(leaf):
            leaves[path] = jax.device_put(leaf, sharding(mesh))
    return build_tree(leaves)


def _is_explicit(leaf: jax.Array) -> bool:
    mesh = getattr(leaf.sharding, "mesh", None)
    return mesh is not None and AxisType.Explicit in mesh.axis_types


def _listed(devices: Iterable[jax.Device]) -> str:
    return ", ".join(sorted(map(str, devices)))


def check_replacement(old: Params, new: Params) -> None:
    """Raise ValueError naming each leaf of `new` that a program compiled for `old` cannot take."""
    check_arrays(new)
    before, after = flatten_tree(old), flatten_tree(new)
    if before.keys() != after.keys():
        odd = sorted("/".join(map(str, path)) for path in before.keys() ^ after.keys())
        raise ValueError(f"new params have another structure: {', '.join(odd)}")
    problems = [
        f"{'/'.join(map(str, path))} is {leaf.dtype}{list(leaf.shape)}, "
        f"not {before[path].dtype}{list(before[path].shape)}"
        for path, leaf in after.items()
        if (leaf.shape, leaf.dtype) != (before[path].shape, before[path].dtype)
    ]
    if problems:
        raise ValueError("new params do not fit the compiled programs: " + "; ".join(problems))


def init_leaves(
    rules: Sequence[ParamRule], key: jax.Array, dtype: DTypeLike, initializer_range: float
) -> Params:
    """Random params: normal matrices, zero biases, norms of one.

    Each leaf's key is folded from its index in `rules`, so one leaf's values do not depend on
    the others' shapes.
    """
    leaves = {}
    for index, rule in enumerate(rules):
        if rule.kind == "matrix":
            drawn = jax.random.normal(jax.random.fold_in(key, index), rule.shape, jnp.float32)
            leaves[rule.path] = (drawn * initializer_range).astype(dtype)
        else:
            leaves[rule.path] = jnp.full(rule.shape, float(rule.kind == "norm"), dtype)
    return build_tree(leaves)
