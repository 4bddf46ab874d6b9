"""The device mesh: it always exists, with one axis `tp`, of size 1 by default."""

from __future__ import annotations

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec


def make_mesh(mesh: Mesh | None = None) -> Mesh:
    """Return `mesh` after checking it, or a mesh of one device.

    Raises ValueError when there is no axis `tp` and NotImplementedError when it is longer than 1.
    """
    if mesh is None:
        return jax.make_mesh((1,), ("tp",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    if tuple(mesh.axis_names) != ("tp",):
        raise ValueError(f"mesh axes are {tuple(mesh.axis_names)}; the engine needs just ('tp',)")
    if mesh.size != 1:
        raise NotImplementedError(f"mesh of {mesh.size} devices; supported: a mesh of size 1")
    return mesh


def sharding(mesh: Mesh, spec: PartitionSpec = PartitionSpec()) -> NamedSharding:
    """A NamedSharding over `mesh`; replicated by default."""
    return NamedSharding(mesh, spec)
