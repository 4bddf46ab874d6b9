"""Time from the start of a process to the first text of its first completion."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers import peer_script
from bench.report import report
from bench.serving import turns

ROOT = Path(__file__).parents[2]
PROMPT, TOKENS = "The capital of France is", 8
COLUMNS = ("fresh process", "first text s", "min - max", "end s")
CACHES = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE")
PLAIN, CACHED, PEER = "pagedjax", "pagedjax, compilation cache", "transformers"


@dataclass(frozen=True)
class Start:
    """Seconds from the start of a process to its first byte on stdout, and to its end."""

    first_s: float
    end_s: float


def run(command: Sequence[str], environment: dict[str, str]) -> Start:
    """Run a process and time it; ValueError with the last line of its stderr if it fails."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        start = time.perf_counter()
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=ROOT
        ) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            first = time.perf_counter() - start
            process.stdout.read()
        end = time.perf_counter() - start
        if process.returncode:
            errors.seek(0)
            raise peer_script.failure(process.returncode, errors.read())
    return Start(first, end)


def measure(model: Path, dtype: str, peer: str | None, repeats: int) -> list[dict[str, Any]]:
    """Measure our start with and without a compilation cache, and the peer's; return entries."""
    ours = [
        sys.executable, "-m", "pagedjax", "generate", "--model", str(model.resolve()),
        "--dtype", dtype, "--temperature", "0", *_task(),
    ]  # fmt: skip
    # Unset JAX's own cache: it would also serve the starts that must have no cache.
    environment = {name: each for name, each in os.environ.items() if name not in CACHES}
    with tempfile.TemporaryDirectory() as folder:
        plain, cached = ([*ours, "--compilation-cache", each] for each in ("none", folder))
        run(cached, environment)  # fills the cache
        contenders: dict[str, Callable[[], Start]] = {
            PLAIN: partial(run, plain, environment),
            CACHED: partial(run, cached, environment),
        }
        if peer is not None:
            theirs = peer_script.command("hf_cold.py", peer, model, dtype)
            contenders[PEER] = partial(run, [*theirs, *_task()], peer_script.environment())
        starts = turns.take(contenders, repeats, lambda done: f"{done.first_s:.2f} s")
    return [entry(name, each) for name, each in starts.items()]


def entry(name: str, starts: Sequence[Start]) -> dict[str, Any]:
    """Return the times of one kind of start."""
    return {
        "name": name,
        "first_s": report.spread([each.first_s for each in starts]),
        "end_s": report.spread([each.end_s for each in starts]),
    }


def lines(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Format the entries as a table."""
    rows = [
        (
            each["name"],
            f"{each['first_s']['median']:.2f}",
            report.between(each["first_s"]),
            f"{each['end_s']['median']:.2f}",
        )
        for each in entries
    ]
    return report.table(COLUMNS, rows)


def _task() -> list[str]:
    return ["--prompt", PROMPT, "--max-tokens", str(TOKENS)]
