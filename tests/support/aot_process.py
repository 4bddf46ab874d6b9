"""Compile the cases of `aot_cases.py` for one absent GPU.

    python -m tests.support.aot_process TARGET OUT [CASE ...]

This needs a process of its own because XLA's CUDA plugin is not in the tests' environment (see
`pallas_kernels.aot.environment`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pallas_kernels import aot
from tests.support.aot_cases import CASES, MIB, everything

LARGE_COPY = 16 * MIB


def summary(report: aot.Report) -> dict[str, Any]:
    """The part of a report that the tests check, as JSON values."""
    kernels = [
        {
            "name": each.name,
            "registers": each.registers,
            "spill_bytes": each.spill_bytes,
            "shared_bytes": each.shared_bytes,
            "wgmma": each.counts(r"wgmma\.mma_async"),
            "mma": each.counts(r"mma\.sync"),
            "async_copies": each.counts(r"cp\.async\.cg\.shared\.global[^;]*(?:0x10|16)[ ,;]"),
        }
        for each in report.kernels
    ]
    return {
        "temporary_bytes": report.temporary_bytes,
        "argument_bytes": report.argument_bytes,
        "aliased_bytes": report.aliased_bytes,
        "copies": report.copies(LARGE_COPY),
        "collectives": report.collectives(),
        "launches": report.launches(),
        "products": report.launched_products(),
        "launches_in_loops": report.launches(in_loops=True),
        "kernels": kernels,
        "seconds": report.seconds,
    }


def main(target: str, out: Path, names: list[str]) -> None:
    """Compile the named cases, or all of the target, and write {case: summary} to `out`.

    The single name "everything" selects the cases of `everything`.
    """
    found = {}
    chosen = CASES
    if names == ["everything"]:
        chosen, names = everything(target), []
    for case in chosen:
        if target in case.targets and (not names or case.name in names):
            mesh = aot.mesh_for(aot.TARGETS[target], case.devices)
            program = case.build(mesh)
            found[case.name] = summary(
                aot.compile_for(
                    mesh, program.fn, *program.avals,
                    donate_argnums=program.donate, shardings=program.shardings,
                )
            )  # fmt: skip
    out.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
