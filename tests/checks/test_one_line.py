"""One-line error messages of commands, and output to an ASCII-only stdout."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pagedjax.checks.one_line import describe, exit_status

ROOT = Path(__file__).parents[2]


def _raised(cause, hidden=False):
    """An AssertionError without a message, raised in this file while `cause` was handled."""
    try:
        try:
            raise cause
        except Exception as error:
            raise AssertionError from None if hidden else error
    except AssertionError as error:
        return error


def test_an_error_with_a_message_is_described_by_it():
    assert describe(ValueError("top_p=0\n must be  positive")) == "top_p=0 must be positive"
    assert describe(KeyError("embed")) == "KeyError: 'embed'"


@pytest.mark.parametrize("error", [AssertionError(), ValueError(" \n"), RuntimeError("")])
def test_an_error_without_a_message_is_named_by_its_type(error):
    assert describe(error) == type(error).__name__


HERE = r"AssertionError in test_one_line\.py:\d+"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (_raised(OSError("no disk")), f"{HERE}, from no disk"),
        (_raised(OSError("no disk"), hidden=True), HERE),
        (_raised(OSError()), HERE + r", from OSError in test_one_line\.py:\d+"),
    ],
    ids=["cause", "hidden cause", "cause without a text"],
)
def test_an_error_without_a_message_names_its_place_and_cause(error, said):
    assert re.fullmatch(said, describe(error)), describe(error)


def test_an_implicit_context_is_named_as_the_cause():
    try:
        try:
            raise LookupError("head")
        except LookupError:
            raise AssertionError  # noqa: B904
    except AssertionError as error:
        assert describe(error).endswith(", from LookupError: head")


@pytest.mark.parametrize(
    "code",
    [
        "import jax; jax.devices()",
        "import jax.numpy as jnp; jnp.ones(1)",
        "from pagedjax.devices.mesh import make_mesh; make_mesh()",
    ],
    ids=["devices", "array", "mesh"],
)
def test_a_platform_without_a_device_is_named(code):
    program = f"""
import sys
from pagedjax.checks.one_line import exit_status
def command():
    {code}
sys.exit(exit_status(command, False))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True,
        env=os.environ | {"JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    said = "error: JAX_PLATFORMS=cuda: jax finds no such device; unset it, or install jax[cuda13] "
    assert (done.returncode, done.stderr) == (1, f"{said}on a machine with a GPU\n")


def test_characters_that_stdout_cannot_encode_are_escaped(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert exit_status(lambda: print("so \N{GRINNING FACE} on", flush=True), debug=False) == 0
    assert written.getvalue() == b"so \\U0001f600 on\n"
