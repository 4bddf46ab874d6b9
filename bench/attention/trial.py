"""Run all paths on one case: compare each with the exact result, then time it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bench.attention import device_timer
from bench.attention.paths import PATHS, Prepare, Prepared, Where
from bench.attention.problem import Problem, exact, make_problem, pool_bytes
from bench.attention.roofline import H200_BYTES_PER_SECOND, work
from bench.attention.shapes import Case

# Largest allowed difference over the largest value, of bfloat16 outputs. Ours are within 4e-3;
# JAX's paged kernel combines its splits in bfloat16.
AGREES = 2e-2
COPIES = 4  # pools in memory at once: the pool, JAX's two layouts, and the gathered pages
CHAIN_SECONDS = 2e-3  # shortest device time of one chain of calls, by arithmetic
FLOPS_PER_SECOND = 4e14  # for that arithmetic only


def what_is_too_large(case: Case, dtype: str, where: Where) -> str | None:
    """Return why the case cannot run on the device, None if it can."""
    needed, available = COPIES * pool_bytes(case, dtype), _memory(where)
    if needed <= available:
        return None
    return (
        f"needs {needed / 2**30:.1f} GiB with its copies, "
        f"but {available / 2**30:.1f} GiB are available"
    )


def _memory(where: Where) -> int:
    """Return the bytes that may be used."""
    if where.on_gpu:
        stats = where.device.memory_stats() or {}
        return stats.get("bytes_limit", 16 << 30) * 9 // 10
    # Half of the free memory; other processes may need the rest.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") // 2


def run(
    case: Case,
    dtype: str,
    paths: Sequence[str],
    where: Where,
    size: int,
    repeats: int,
    device_rates: dict[str, Any],
) -> dict[str, Any]:
    """Check and time all paths; return the case's entry of the result, as values for JSON."""
    entry = describe(case, dtype)
    if reason := what_is_too_large(case, dtype, where):
        return entry | {"skipped": reason}
    problem = make_problem(case, dtype, size)
    wanted = exact(problem, problem.layers - 1)
    found: dict[str, dict[str, Any]] = {}
    ready: dict[str, device_timer.Timed] = {}
    for name in paths:
        found[name], prepared = check(problem, PATHS[name], where, wanted)
        if prepared is None:
            continue
        try:
            ready[name] = prepared.timed(problem, chain_length(case, dtype, where))
        except Exception as error:  # keep the results of the other paths
            found[name] |= {"status": "failed", "reason": one_line(error)}
    try:
        timings = device_timer.take_turns(ready, repeats)
    except Exception as error:
        return entry | {"paths": found, "skipped": f"while timing: {one_line(error)}"}
    for name, timing in timings.items():
        found[name] |= {"status": "timed", **timing.to_json(), **_rates(case, dtype, timing)}
        found[name] |= _shares(found[name], device_rates)
    return entry | {"layers": problem.layers, "block_size": size, "paths": found}


def describe(case: Case, dtype: str) -> dict[str, Any]:
    """Return the case with its bytes and flops."""
    needed = work(case, dtype)
    return {
        "model": case.heads.name, "kind": case.kind, "label": case.label, "dtype": dtype,
        "rows": case.rows, "tokens": sum(case.queries), "keys": sum(case.contexts),
        "kv_bytes": needed.kv_bytes, "scale_bytes": needed.scale_bytes,
        "query_bytes": needed.query_bytes, "bytes": needed.bytes, "flops": needed.flops,
        "flops_per_byte": needed.intensity,
    }  # fmt: skip


def check(
    problem: Problem, prepare: Prepare, where: Where, wanted: np.ndarray
) -> tuple[dict[str, Any], Prepared | None]:
    """Run a path once; return its status, and the prepared path if its result agrees."""
    try:
        prepared = prepare(problem, where)
        out = np.asarray(prepared.once(problem, problem.layers - 1), np.float32)
    except NotImplementedError as error:
        return {"status": "skipped", "reason": one_line(error)}, None
    except ValueError as error:  # our kernels do not support the shape or option
        return {"status": "refused", "reason": one_line(error)}, None
    except Exception as error:  # compilers and drivers raise any exception
        return {"status": "failed", "reason": one_line(error)}, None
    difference = float(np.abs(out - wanted).max() / np.abs(wanted).max())
    if not difference <= AGREES:  # also true for NaN
        reason = f"differs by {difference:.1e} of the largest value"
        return {"status": "disagrees", "difference": difference, "reason": reason}, None
    return {"status": "agrees", "difference": difference}, prepared


def chain_length(case: Case, dtype: str, where: Where) -> int:
    """Return the calls in one program: on a GPU it must run longer than the next dispatch."""
    if not where.on_gpu:
        return 1
    needed = work(case, dtype)
    least = max(needed.bytes / H200_BYTES_PER_SECOND, needed.flops / FLOPS_PER_SECOND)
    return int(min(device_timer.CHAINED, max(2, CHAIN_SECONDS / least)))


def _rates(case: Case, dtype: str, timing: device_timer.Timing) -> dict[str, float]:
    needed = work(case, dtype)
    return {
        "bytes_per_second": needed.bytes / timing.median,
        "flops_per_second": needed.flops / timing.median,
    }


def _shares(path: dict[str, Any], device_rates: dict[str, Any]) -> dict[str, float]:
    return {
        "share_of_copy": path["bytes_per_second"] / device_rates["copy_bytes_per_second"],
        "share_of_matmul": path["flops_per_second"] / device_rates["matmul_flops_per_second"],
    }


def one_line(error: BaseException) -> str:
    """Return the first line of an error, cut to 240 characters."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    text = " ".join(lines[0].split())
    if not isinstance(error, NotImplementedError | ValueError):  # our own messages need no type
        text = f"{type(error).__name__}: {text}"
    return text[:240]


def where_it_runs(interpret: bool = False) -> Where:
    """Return the first device."""
    return Where(jax.devices()[0], interpret)
