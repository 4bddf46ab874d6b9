"""What the processor of this machine can do, where that decides which way to compute is fast."""

from __future__ import annotations

from functools import cache
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


def field(*names: str) -> str:
    """The first value of any of the fields in Linux' description of the CPUs; empty elsewhere."""
    try:
        text = CPU_INFO.read_text(encoding="utf-8")
    except OSError:
        return ""
    fields = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for name, _, value in fields if name.strip() in names), "")


@cache
def instruction_sets() -> frozenset[str]:
    """Their names, as Linux lists them; none where it is no Linux."""
    return frozenset(field("flags", "Features").split())
