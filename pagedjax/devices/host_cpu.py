"""CPU features that determine which implementation is fastest on this machine."""

from __future__ import annotations

from functools import cache
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


def field(*names: str) -> str:
    """The first value of any of these fields in /proc/cpuinfo; empty if there is none."""
    try:
        text = CPU_INFO.read_text(encoding="utf-8")
    except OSError:
        return ""
    fields = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for name, _, value in fields if name.strip() in names), "")


@cache
def instruction_sets() -> frozenset[str]:
    """The names of the CPU's features as Linux lists them; empty on other systems."""
    return frozenset(field("flags", "Features").split())
