"""The cases of `test_aot.py`: programs to compile for a GPU, and bounds on each of them.

A new kernel needs a new line in `CASES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jax.sharding import Mesh

from bench.serving.llama_step import MODEL, POOL_BYTES, Program, step
from pallas_kernels import aot, xla_decode, xla_prefill
from tests.support.aot_programs import add_norms, decode_op, kernels_op, mosaic_op, prefill_op
from tests.support.kernel_cases import KernelCase, compiled_cases

MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """A program to compile, and bounds on the result. Bytes are per device.

    build: makes the program for a mesh.
    temporaries: most bytes that it may use beyond its arguments.
    aliased: least bytes that it must update in place.
    kernels: names of all its Pallas kernels.
    launches: most launches outside loops, divided by the layers; those before and after the layers
        count too.
    besides: most of these launches that are not matrix products.
    exchanges: {(operation, data type, shape): count} of all collectives.
    halves: whether the products of its kernels have 16-bit operands, as tensor cores require.
    """

    name: str
    build: Callable[[Mesh], Program]
    temporaries: int
    aliased: int = 0
    targets: tuple[str, ...] = tuple(aot.TARGETS)
    devices: int = 1
    kernels: tuple[str, ...] = ()
    layers: int = 1
    launches: int = 100
    besides: int = 100
    exchanges: Mapping[tuple[str, str, tuple[int, ...]], int] = field(default_factory=dict)
    halves: bool = True


def kernel_case(case: KernelCase) -> Case:
    """`kernels_op` in one configuration, and its bounds."""
    join = () if case.splits == "one" else ("paged_decode_join",)
    return Case(
        str(case), kernels_op(case), (20 if case.splits == "fixed" else 4) * MIB, 2**33,
        kernels=("rope_write", "paged_decode", "paged_prefill", *join), launches=8,
        halves=case.dtype == "bfloat16",
    )  # fmt: skip


H200 = ("h200",)  # for cases that would test nothing new on another GPU
POOLS = 2 * POOL_BYTES
BETWEEN = ("rope_write", "add_norm")  # the kernels between products
DECODE = (*BETWEEN, "paged_decode", "paged_decode_join")
HIDDEN = MODEL.hidden_size

# Most registers per thread and bytes of shared memory per block that a kernel may use. Two blocks
# of any Triton kernel fit in one SM of an H200.
REGISTERS = {
    "rope_write": 80,
    "add_norm": 128,
    "paged_decode": 200,
    "paged_decode_join": 128,
    "paged_prefill": 255,
    "paged_decode_mosaic_gpu_kernel": 192,
}
SHARED_BYTES = 113 << 10


def tp4(tokens: int, layers: int) -> dict[str, Any]:
    """Bounds on four devices: two all-reduces of hidden states per layer, after `o` and `down`."""
    sums = {("all-reduce", "f32", (tokens, HIDDEN)): 2 * layers}
    aliased = POOLS // 4
    return {
        "devices": 4, "targets": H200, "aliased": aliased, "layers": layers, "exchanges": sums,
    }  # fmt: skip


CASES = [
    Case("xla decode", decode_op(xla_decode.paged_decode, 32), 16 * MIB, POOLS, launches=10),
    Case(
        "xla prefill",
        prefill_op(xla_prefill.paged_prefill, 8, 512),
        32 * MIB,
        POOLS,
        launches=14,
    ),
    Case("xla step, 2 layers", step("xla", 32, 0, 2), 32 * MIB, POOLS, layers=2, launches=22),
    Case("xla step, tp 4", step("xla", 32, 0, 2), 32 * MIB, **tp4(32, 2), launches=24),
    Case("pallas step", step("pallas", 32, 0, 32), 16 * MIB, POOLS, H200, layers=32, launches=11,
         besides=7, kernels=DECODE),
    Case("pallas step, 128 rows", step("pallas", 128, 0, 12), 32 * MIB, POOLS, layers=12,
         launches=10, besides=6, kernels=(*BETWEEN, "paged_decode")),
    Case("pallas step, 16 rows", step("pallas", 16, 0, 12), 16 * MIB, POOLS, layers=12,
         launches=11, besides=7, kernels=DECODE),
    Case("pallas mixed step", step("pallas", 16, 512, 2), 128 * MIB, POOLS, layers=2, launches=28,
         kernels=(*DECODE, "paged_prefill")),
    Case("add_norm", add_norms, MIB, kernels=("add_norm",), launches=4),
    Case("pallas step, tp 4", step("pallas", 32, 0, 2), 32 * MIB, **tp4(32, 2), launches=24,
         kernels=DECODE),
    Case("pallas mixed step, tp 4", step("pallas", 32, 512, 2), 64 * MIB, **tp4(544, 2),
         launches=30, kernels=(*DECODE, "paged_prefill")),
    Case("mosaic decode", mosaic_op, 4 * MIB, targets=H200, launches=8,
         kernels=("paged_decode_mosaic_gpu_kernel",)),
    *map(kernel_case, compiled_cases(full=False)),
]  # fmt: skip


# The XLA step with all layers, and mixed XLA steps; they take long to compile.
LONG_CASES = [
    Case("xla step", step("xla", 32, 0, 32), 32 * MIB, POOLS, H200, layers=32, launches=17),
    Case("xla mixed step", step("xla", 32, 512, 2), 128 * MIB, POOLS, H200, layers=2, launches=29),
    Case("xla mixed step, tp 4", step("xla", 32, 512, 2), 64 * MIB, **tp4(544, 2), launches=31),
]


def everything(target: str) -> list[Case]:
    """All configurations of the kernels, and the long cases."""
    kernels = [kernel_case(case) for case in compiled_cases(full=True)]
    return kernels + [case for case in LONG_CASES if target in case.targets]
