"""The device mesh, which every engine has: one axis `tp`, of size 1 by default."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pagedjax.checks.one_line import no_device


def make_mesh(mesh: Mesh | None = None, device: jax.Device | None = None) -> Mesh:
    """The engine's mesh over the devices of `mesh`, else over `device`, else over jax's first one.

    Its axis type is Auto, independent of `mesh`: an Explicit axis would be part of all arrays'
    types. Raises TypeError or ValueError if `mesh` is not a mesh with the single axis `tp`,
    NotImplementedError if its size is not 1, and ValueError if jax has no device.
    """
    if mesh is None:
        devices = np.array([device or _first_device()])
    elif not isinstance(mesh, Mesh):
        raise TypeError(f"mesh={mesh!r} must be a jax.sharding.Mesh with an axis 'tp', or None")
    elif tuple(mesh.axis_names) != ("tp",):
        raise ValueError(f"mesh axes are {tuple(mesh.axis_names)}; the engine needs ('tp',)")
    elif mesh.size != 1:
        raise NotImplementedError(f"mesh of {mesh.size} devices; supported: a mesh of size 1")
    else:
        devices = mesh.devices
    return Mesh(devices, ("tp",), axis_types=(AxisType.Auto,))


def _first_device() -> jax.Device:
    try:
        return jax.devices()[0]
    except AssertionError as error:  # raised by jax without a message
        raise ValueError(no_device(jax.config.jax_platforms or "")) from error


def sharding(mesh: Mesh, spec: PartitionSpec = PartitionSpec()) -> NamedSharding:
    """A NamedSharding over `mesh`; replicated by default."""
    return NamedSharding(mesh, spec)
