"""Fixtures of the engine's tests."""

from __future__ import annotations

import pytest

from tests.support import tiny_llama

INTERPRETED = pytest.param("pallas_interpret", marks=pytest.mark.slow)


@pytest.fixture(params=["xla", INTERPRETED])
def attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with the CPU's attention and, as a slow test, with the GPU's kernels."""
    monkeypatch.setattr(tiny_llama, "DEFAULT_ATTENTION", request.param)
