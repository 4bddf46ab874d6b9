"""Compile the kernels for an H200 without having one, and report registers, launches and memory.

`gather` runs this module in a child process, because XLA's CUDA plugin must not be on the import
path of a process whose jax uses the CPU; see `pallas_kernels.aot`.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from bench.attention.paths import Prepared, ours
from bench.attention.problem import Problem
from bench.attention.roofline import H200_BYTES_PER_SECOND, QUERY, pool_dtype, work
from bench.attention.shapes import DTYPES, MODELS, Case, Heads, decode
from bench.attention.trial import one_line
from pallas_kernels import aot, triton_decode, triton_prefill
from pallas_kernels.formats import SCALE_DTYPE

ROOT = Path(__file__).parents[1]
PLUGIN = ROOT / ".aot"
H200_FLOPS_PER_SECOND = 989e12  # dense bfloat16, from the data sheet
ROWS, CONTEXT, CHUNK = 32, 4096, 2048
SIZE, LAYERS = 16, 4


def gather(models: Sequence[str], dtypes: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """Compile for at most `seconds` and return the facts; FileNotFoundError without the plugin."""
    if not PLUGIN.is_dir():
        raise FileNotFoundError(
            f"cannot compile for an H200: there is no folder {PLUGIN.name}; "
            "`make .aot/.installed` makes it"
        )
    with tempfile.TemporaryDirectory(prefix="facts-") as folder:
        out, dumps = Path(folder) / "facts.json", Path(folder) / "mosaic"
        dumps.mkdir()
        command = [sys.executable, "-m", "bench.compiled_facts", str(out)]
        command += [",".join(models), ",".join(dtypes)]
        environment = {**os.environ, **aot.environment(PLUGIN, dumps)}
        said = ""
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, timeout=seconds, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
            )  # fmt: skip
            said = done.stdout.strip().splitlines()[-1] if done.returncode else ""
        except subprocess.TimeoutExpired:
            said = f"stopped after {seconds:.0f} s"
        found = json.loads(out.read_text("utf-8")) if out.exists() else []
    return found + ([{"case": "the child process", "reason": said}] if said else [])


def abstract(case: Case, dtype: str) -> Problem:
    """Return a problem with the shapes of the case and no arrays."""
    pages, heads = -(-max(case.contexts) // SIZE), case.heads
    shape = (LAYERS, case.rows * pages, heads.num_kv_heads, SIZE, heads.width)

    def int32(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    pool: Any = jax.ShapeDtypeStruct(shape, pool_dtype(dtype))
    scales: Any = None if dtype == "bf16" else jax.ShapeDtypeStruct(shape[:-1], SCALE_DTYPE)
    q: Any = jax.ShapeDtypeStruct((sum(case.queries), heads.num_heads, heads.width), QUERY)
    return Problem(
        case, dtype, q, pool, pool, int32(case.rows, pages), int32(case.rows),
        int32(case.rows + 1), scales, scales,
    )  # fmt: skip


def programs(heads: Heads, dtype: str) -> Iterator[tuple[str, Case, Prepared]]:
    """Yield name, case and program of every kernel compiled for these heads."""
    step = decode(heads, ROWS, CONTEXT)
    chunk = Case(
        heads, "prefill", f"chunk {CHUNK} on {4 * CHUNK}", (5 * CHUNK,), (CHUNK,)
    )  # the first 8k tokens of the prompt are in the pool
    yield "triton", step, ours(triton_decode.paged_decode, abstract(step, dtype))
    yield "triton", chunk, ours(triton_prefill.paged_prefill, abstract(chunk, dtype))
    if dtype == "bf16":
        try:
            module = importlib.import_module("pallas_kernels.mosaic_decode")
        except ImportError:
            return
        yield "mosaic", step, ours(module.paged_decode, abstract(step, dtype))


def compile_all(models: Sequence[str], dtypes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the facts of one compiled kernel at a time."""
    mesh = aot.mesh_for(aot.TARGETS["h200"])
    for model in models:
        for dtype in dtypes:
            for name, case, prepared in programs(MODELS[model], dtype):
                yield _fact(mesh, name, case, dtype, prepared)


def _fact(mesh: Any, name: str, case: Case, dtype: str, prepared: Prepared) -> dict[str, Any]:
    needed = work(case, dtype)
    fact = {
        "case": f"{name} {case.name} {dtype}", "bytes": needed.bytes, "flops": needed.flops,
        "roofline_s": max(
            needed.bytes / H200_BYTES_PER_SECOND, needed.flops / H200_FLOPS_PER_SECOND
        ),
    }  # fmt: skip
    q: Any = jax.ShapeDtypeStruct(
        (sum(case.queries), case.heads.num_heads, case.heads.width), QUERY
    )
    layer = jax.ShapeDtypeStruct((), jnp.int32)
    try:
        report = aot.compile_for(mesh, prepared.run, q, layer, prepared.operands)
    except Exception as error:  # keep the facts of the other kernels
        return fact | {"reason": one_line(error)}
    kernels = [asdict(each) | {"shared_bytes": each.shared_bytes} for each in report.kernels]
    for kernel in kernels:
        del kernel["ptx"]
    return fact | {
        "kernels": kernels, "temporary_bytes": report.temporary_bytes,
        "launches": report.launches(), "launches_in_loops": report.launches(in_loops=True),
        "compile_seconds": report.seconds,
    }  # fmt: skip


def main(out: Path, models: Sequence[str], dtypes: Sequence[str]) -> None:
    """Write the file after each fact, so that a child that is stopped keeps its results so far."""
    found: list[dict[str, Any]] = []
    for fact in compile_all(models, dtypes):
        found.append(fact)
        partial = out.with_suffix(".partial")
        partial.write_text(json.dumps(found), "utf-8")
        partial.replace(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3].split(",") or list(DTYPES))
