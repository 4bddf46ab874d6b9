"""What a measured number was measured on; every result carries it."""

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

from pagedjax.version import __version__


def describe() -> dict[str, Any]:
    """The machine, the versions, the date and the commit, as values that JSON can hold."""
    device = jax.devices()[0]
    return {
        "cpu": _cpu_model(),
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
    """The header for people."""
    versions = ", ".join(f"{name} {header[name]}" for name in ("python", "jax", "jaxlib", "numpy"))
    commit = header["commit"] or "no git checkout"
    return [
        f"{header['cpu']}, {header['cores']} cores, {header['memory_gib']} GiB of memory",
        f"{header['num_devices']} device(s): {header['device']} ({header['platform']})",
        f"pagedjax {header['pagedjax']} ({commit}), {versions}",
        header["date"],
    ]


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _commit() -> str | None:
    """The commit, with "-dirty" for a changed tree; None outside a checkout or without git."""
    # A benchmark must not write to the checkout, not even git's refreshed index.
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
