"""Facts about a decode step of LLaMA-3-8B, without a GPU: `python -m bench.step_facts`.

Compiles the engine's forward program (bfloat16, 32 layers) for several numbers of rows and counts
its launches. Computes the bytes it must read, and the time this takes at the data sheet's
bandwidth. Nothing is measured. `--json FILE` writes everything to a file.

XLA's CUDA plugin must not be on the import path of a process whose jax uses the CPU (see
`pallas_kernels.aot`), so a child process compiles for each GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.report import command_line, header
from bench.report.report import aligned
from bench.serving.llama_step import MODEL, NUM_BLOCKS, step
from pagedjax.checks.one_line import exit_status
from pagedjax.layers.kv_cache import block_bytes
from pagedjax.models import llama
from pagedjax.step.batch import Buckets
from pallas_kernels import aot

ROOT = Path(__file__).parents[1]
PLUGIN = ROOT / ".aot"
LABEL = "compiled facts and arithmetic, not measurements"
ROWS = {"h200": (1, 8, 32, 64, 128, 256), "a100": (32,)}
MAX_ROWS = 256
FLOPS_PER_SECOND = {"h200": 989e12, "a100": 312e12}  # dense bfloat16, from the data sheets
LARGE_COPY = 16 << 20
COLUMNS = (
    "GPU", "rows", "launches", "a layer", "products", "besides", "kernels", "elementwise",
    "copies", "GB read", "limit ms", "temporaries MiB",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or non-zero after one line on stderr."""
    parser = command_line.new_parser("step_facts", __doc__)
    parser.add_argument("--implementation", default="pallas", choices=["pallas", "xla"])
    parser.add_argument(
        "--context", type=int, default=1024, help="tokens of each row (%(default)s)"
    )
    command_line.add_outputs(parser)
    options = parser.parse_args(arguments)
    return exit_status(partial(_run, options), options.debug)


def _run(options: argparse.Namespace) -> None:
    command_line.check_targets(options.json)
    steps = [
        fact
        for target, rows in ROWS.items()
        for fact in gather(target, rows, options.implementation, options.context)
    ]
    described = header.describe()
    print("\n".join([*header.lines(described), f"LLaMA-3-8B, bfloat16: {LABEL}", *table(steps)]))
    result = {
        "header": described, "what": LABEL, "implementation": options.implementation,
        "context": options.context, "steps": steps,
    }  # fmt: skip
    command_line.write_json(options.json, result)


def gather(
    target: str, rows: Sequence[int], implementation: str, context: int
) -> list[dict[str, Any]]:
    """Return the facts of one GPU. Raises FileNotFoundError without the plugin."""
    if not PLUGIN.is_dir():
        raise FileNotFoundError(
            f"there is no folder {PLUGIN.name}; `make .aot/.installed` makes it"
        )
    with tempfile.TemporaryDirectory(prefix="facts-") as folder:
        out = Path(folder) / "facts.json"
        command = [sys.executable, "-c", "from bench.step_facts import child; child()"]
        command += [str(out), target, implementation, str(context), *map(str, rows)]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **aot.environment(PLUGIN)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"compiling failed: {done.stdout.strip().splitlines()[-1]}")
        return json.loads(out.read_text("utf-8"))


def child() -> None:
    """Compile in the process with the plugin: `OUT TARGET IMPLEMENTATION CONTEXT ROWS...`."""
    out, target, implementation, *numbers = sys.argv[1:]
    context, *rows = map(int, numbers)
    facts = list(compiled(target, rows, implementation, context))
    Path(out).write_text(json.dumps(facts), encoding="utf-8")


def compiled(
    target: str, rows: Sequence[int], implementation: str, context: int
) -> Iterator[dict[str, Any]]:
    """Yield the facts of each number of rows."""
    mesh = aot.mesh_for(aot.TARGETS[target])
    for count in rows:
        padded = next(each for each in Buckets(MAX_ROWS, 1).row_buckets if each >= count)
        program = step(implementation, padded, 0, MODEL.num_layers, slots=MAX_ROWS)(mesh)
        report = aot.compile_for(
            mesh, program.fn, *program.avals,
            donate_argnums=program.donate, shardings=program.shardings,
        )  # fmt: skip
        yield {
            "target": target, "rows": count, "padded_rows": padded,
            **counts(report), **arithmetic(target, count, context),
        }  # fmt: skip


def counts(report: aot.Report) -> dict[str, Any]:
    """Count launches. Counts per layer are totals over the number of layers.

    kernels: ours. elementwise: XLA's fusions other than products. With products and copies, these
    are all launches.
    """
    launches, loops = report.launches(), report.launches(in_loops=True)
    names = {kernel.name.rstrip("_0123456789") for kernel in report.kernels}
    total, products = sum(launches.values()), report.launched_products()
    ours = sum(count for name, count in launches.items() if name in names)
    copies = sum(1 for each in report.schedule if each.kind == "Copy" and not each.in_loop)
    layers = MODEL.num_layers
    return {
        "launches": total,
        "launches_per_layer": total / layers,
        "products_per_layer": products / layers,
        "besides_products_per_layer": (total - products) / layers,
        "kernels_per_layer": ours / layers,
        "elementwise_per_layer": (total - products - ours - copies) / layers,
        "copies": copies,
        "large_copies": report.copies(LARGE_COPY),
        "launches_in_loops": sum(loops.values()),
        "by_name": dict(sorted(launches.items())),
        "temporary_bytes": report.temporary_bytes,
        "aliased_bytes": report.aliased_bytes,
        "registers": {each.name: each.registers for each in report.kernels},
        "spill_bytes": sum(each.spill_bytes for each in report.kernels),
    }


def arithmetic(target: str, rows: int, context: int) -> dict[str, Any]:
    """Compute the bytes any implementation must read: layers' weights, and each row's KV.

    Intermediate results are not counted, nor is the LM head, which the sampling program runs.
    """
    matrices = sum(
        math.prod(rule.shape)
        for rule in llama.param_rules(MODEL)
        if rule.path[0] == "layers" and rule.kind == "matrix"
    )
    weights = 2 * matrices
    keys = rows * context * block_bytes(MODEL, 1, "bfloat16")
    heads = MODEL.num_heads * MODEL.head_dim * MODEL.num_layers
    flops = rows * (2 * matrices + 4 * context * heads)
    bandwidth = aot.TARGETS[target].bandwidth
    return {
        "context": context,
        "fits_the_pool": rows * context <= NUM_BLOCKS * 16,
        "weight_bytes": weights,
        "kv_bytes": keys,
        "flops": flops,
        "byte_limit_seconds": (weights + keys) / bandwidth,
        "flop_limit_seconds": flops / FLOPS_PER_SECOND[target],
    }


def table(steps: Sequence[dict[str, Any]]) -> list[str]:
    """Format the facts as a table."""
    rows: list[Sequence[str]] = [COLUMNS]
    for each in steps:
        limit = max(each["byte_limit_seconds"], each["flop_limit_seconds"])
        read = (each["weight_bytes"] + each["kv_bytes"]) / 1e9
        rows.append(
            (each["target"], str(each["rows"]), str(each["launches"]),
             f"{each['launches_per_layer']:.2f}", f"{each['products_per_layer']:.2f}",
             f"{each['besides_products_per_layer']:.2f}", f"{each['kernels_per_layer']:.2f}",
             f"{each['elementwise_per_layer']:.2f}", str(each["copies"]), f"{read:.2f}",
             f"{limit * 1e3:.2f}", f"{each['temporary_bytes'] / 2**20:.1f}")
        )  # fmt: skip
    return aligned(rows)


if __name__ == "__main__":
    sys.exit(main())
