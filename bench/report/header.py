"""Machine, versions and commit of a measurement; every result contains them."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np

from pagedjax.devices import host_cpu
from pagedjax.version import __version__

# These make the same code several times faster, even on CPUs of the same name.
INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")


def describe() -> dict[str, Any]:
    """Return machine, versions, date and commit as values for JSON."""
    device = jax.devices()[0]
    return {
        "cpu": host_cpu.field("model name") or platform.processor() or platform.machine(),
        "instructions": _instructions(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gib": round(_memory_bytes() / 2**30, 1),
        "device": device.device_kind,
        "platform": device.platform,
        "num_devices": jax.device_count(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": np.__version__,
        "pagedjax": __version__,
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def lines(header: dict[str, Any]) -> list[str]:
    """Format the header as lines of text."""
    versions = ", ".join(f"{name} {header[name]}" for name in ("python", "jax", "jaxlib", "numpy"))
    commit = header["commit"] or "no git checkout"
    instructions = ", ".join(header["instructions"]) or "unknown"
    return [
        f"{header['cpu']}, {header['cores']} cores, {header['memory_gib']} GiB of memory, "
        f"instructions: {instructions}",
        f"{header['num_devices']} device(s): {header['device']} ({header['platform']})",
        f"pagedjax {header['pagedjax']} ({commit}), {versions}",
        header["date"],
    ]


def _instructions() -> list[str]:
    """Return the names in INSTRUCTIONS that the CPU has, as Linux reports them."""
    return [name for name in INSTRUCTIONS if name in host_cpu.instruction_sets()]


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _commit() -> str | None:
    """Return the commit, with "-dirty" for a changed tree; None without git or a checkout."""
    # --no-optional-locks: a benchmark must not write to the checkout, not even git's index.
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
