"""What the processor of this machine can do, where that decides which way to compute is fast."""

from __future__ import annotations

from functools import cache
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


@cache
def instruction_sets() -> frozenset[str]:
    """Their names, as Linux lists them; none where it is no Linux."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return frozenset()
    fields = (line.partition(":") for line in lines)
    named = (value for name, _, value in fields if name.strip() in ("flags", "Features"))
    return frozenset(next(named, "").split())
