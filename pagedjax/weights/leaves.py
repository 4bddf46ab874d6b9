"""What an engine asks of the leaves of a params tree: type, life, placement, replacement.

The only file, besides `layers.linear`, that looks at a leaf. A leaf of another kind than a plain
array is taught here to be checked, placed and replaced, and there to be multiplied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
from jax.sharding import AxisType, Mesh

from pagedjax.config import DTYPES
from pagedjax.devices.mesh import sharding
from pagedjax.weights.params import Params, build_tree, flatten_tree


def dtype_of(params: Params) -> str:
    """The params' floating point type by name, as `check_arrays` has ensured."""
    return str(params["embed"].dtype)


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
    """The device that holds all leaves; None if there are several."""
    devices = {device for leaf in flatten_tree(params).values() for device in leaf.devices()}
    return devices.pop() if len(devices) == 1 else None


def placed(params: Params, mesh: Mesh) -> Params:
    """Return the tree as programs of `mesh` take it, in dicts and tuples, without copying a leaf.

    Compiled programs distinguish lists from tuples and FrozenDicts from dicts; users may give any
    of them. An array on an Explicit mesh has that mesh in its type, which programs of other meshes
    do not accept. Raises ValueError naming a leaf that is on other devices.
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
    """Raise ValueError naming each leaf of `new` that programs compiled for `old` cannot take."""
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
