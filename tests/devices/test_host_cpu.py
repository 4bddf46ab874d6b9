"""CPU facts read from `/proc/cpuinfo`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pagedjax.devices import host_cpu


@pytest.fixture(autouse=True)
def read_anew() -> Iterator[None]:
    host_cpu.instruction_sets.cache_clear()
    yield
    host_cpu.instruction_sets.cache_clear()


@pytest.mark.parametrize("field", ["flags\t\t", "Features\t"])
def test_the_first_processors_instruction_sets_are_found(
    field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor : 0\n{field}: fpu avx2 fma\n\nprocessor : 1\n{field}: other\n")
    monkeypatch.setattr(host_cpu, "CPU_INFO", info)
    assert host_cpu.instruction_sets() == {"fpu", "avx2", "fma"}


def test_no_instruction_sets_are_known_without_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_cpu, "CPU_INFO", tmp_path / "missing")
    assert host_cpu.instruction_sets() == frozenset()
