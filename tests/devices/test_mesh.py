"""The devices of an engine: meshes given by users, and params placed on another mesh."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pagedjax import Engine, EngineConfig
from pagedjax.devices.mesh import make_mesh
from tests.support.tiny_llama import GREEDY, finished, tiny

SHARES_PROGRAMS = False  # these tests are about how each engine traces and compiles its programs
PROMPT = [5, 6, 7, 90]


def tokens(params, new_params=None, **options):
    engine = Engine(tiny("base")[0], params, EngineConfig(num_blocks=8, max_num_seqs=2, **options))
    if new_params is not None:
        engine.update_params(new_params)
    engine.add_request("a", PROMPT, GREEDY)
    return finished(engine.run())["a"]


def explicit_mesh(axis):
    mesh = jax.make_mesh((1,), (axis,), axis_types=(AxisType.Explicit,), devices=jax.devices()[:1])
    assert mesh.axis_types == (AxisType.Explicit,)
    return mesh


@pytest.fixture(scope="module")
def expected():
    return tokens(tiny("base")[1])


def test_axes_of_any_type(expected):
    params = tiny("base")[1]
    assert tokens(params, mesh=explicit_mesh("tp")) == expected
    assert tokens(params, mesh=Mesh(np.array(jax.devices()[:1]), ("tp",))) == expected
    assert make_mesh(explicit_mesh("tp")).axis_types == (AxisType.Auto,)


def test_params_on_an_explicit_mesh_are_not_copied(expected):
    """The type of a trainer's arrays contains its explicit mesh."""
    params = tiny("base")[1]
    theirs = jax.device_put(params, NamedSharding(explicit_mesh("data"), PartitionSpec()))
    assert tokens(theirs) == tokens(params, theirs) == expected
    engine = Engine(tiny("base")[0], theirs, EngineConfig(num_blocks=8))
    assert engine.params is theirs
    for ours, leaf in zip(
        jax.tree.leaves(engine._runner.params), jax.tree.leaves(theirs), strict=True
    ):
        assert ours.unsafe_buffer_pointer() == leaf.unsafe_buffer_pointer()


def test_a_mesh_context_around_the_calls_changes_no_token(expected):
    with jax.set_mesh(explicit_mesh("data")):
        assert tokens(tiny("base")[1]) == expected


@pytest.mark.parametrize(
    ("mesh", "error", "message"),
    [
        ("x", TypeError, "mesh='x' must be a jax.sharding.Mesh"),
        (("data",), ValueError, r"mesh axes are \('data',\)"),
        (("tp", "dp"), ValueError, r"mesh axes are \('tp', 'dp'\)"),
    ],
)
def test_other_meshes_are_refused(mesh, error, message):
    if isinstance(mesh, tuple):
        mesh = Mesh(np.array(jax.devices()[:1]).reshape((1,) * len(mesh)), mesh)
    with pytest.raises(error, match=message):
        tokens(tiny("base")[1], mesh=mesh)


def on_two_devices():
    """Run engines in a process with two devices; print tokens and error messages as JSON."""
    params, (first, second) = tiny("base")[1], jax.devices()
    there = jax.device_put(params, second)
    mesh = Mesh(np.array([first, second]), ("data",))
    trials = {
        "first": lambda: tokens(params),
        "second": lambda: tokens(there),
        "second by mesh": lambda: tokens(there, mesh=Mesh(np.array([second]), ("tp",))),
        "elsewhere": lambda: tokens(there, mesh=Mesh(np.array([first]), ("tp",))),
        "update": lambda: tokens(params, there),
        "both": lambda: tokens(jax.device_put(params, NamedSharding(mesh, PartitionSpec()))),
        "tp of two": lambda: tokens(params, mesh=Mesh(np.array([first, second]), ("tp",))),
    }
    found = {}
    for name, trial in trials.items():
        try:
            found[name] = trial()
        except (ValueError, NotImplementedError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


def test_the_engine_runs_where_its_params_are(expected):
    done = subprocess.run(
        [sys.executable, "-c", "from tests.devices.test_mesh import on_two_devices as f; f()"],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True,
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
    )  # fmt: skip
    found = json.loads(done.stdout)
    for name in ("first", "second", "second by mesh"):
        assert found[name] == expected
    for name in ("elsewhere", "update"):
        assert "params leaf embed is on cpu:1 and the engine on cpu:0" in found[name]
    assert "params leaf embed is on cpu:0, cpu:1" in found["both"]
    assert found["tp of two"].startswith("NotImplementedError: mesh of 2 devices")
