"""Compiles the cases of `test_aot.py` for one absent GPU.

    python -m tests.support.aot_process TARGET OUT

It is a process of its own because XLA's CUDA plugin is not in the environment of the tests (see
`pallas_kernels.aot.environment`). The table below is all there is to a case; a new kernel is a
new line of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bench.serving.llama_step import (
    MODEL,
    POOL,
    POOL_BYTES,
    TABLE_WIDTH,
    Program,
    bfloat16,
    int32,
    step,
)
from pallas_kernels import (
    aot,
    mosaic_decode,
    tiles,
    triton_add_norm,
    triton_decode,
    triton_prefill,
    triton_rope_write,
    xla_decode,
    xla_prefill,
    xla_write,
)  # fmt: skip
from tests.support.kernel_cases import KV_HEADS, ONE_BYTE, KernelCase, compiled_cases

MIB = 1 << 20
LARGE_COPY = 16 * MIB


@dataclass(frozen=True)
class Case:
    """A program to compile and what must come out of it. Bytes are per device.

    build: makes the program for a mesh.
    temporaries: bytes that it may need beyond its arguments.
    aliased: bytes that it must update in place.
    kernels: names of all its Pallas kernels.
    launches: that it may make outside loops, per layer, what comes before and after included.
    besides: of those, how many may be something else than matrix products.
    exchanges: {(operation, data type, shape): how often}, all that devices may exchange.
    halves: the products of its kernels have 16-bit operands, which tensor cores take.
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


def decode_op(paged_decode: Callable[..., Any], rows: int) -> Callable[[Mesh], Program]:
    """Write the keys and values of `rows` rows, then let each row's query attend."""

    def run(k_pool, v_pool, layer, blocks, offsets, k, v, q, tables, lens):
        k_pool = xla_write.write_kv(k_pool, layer, blocks, offsets, k)
        v_pool = xla_write.write_kv(v_pool, layer, blocks, offsets, v)
        out = paged_decode(q, k_pool, v_pool, layer, tables, lens, scale=128**-0.5)
        return k_pool, v_pool, out

    avals = (*_written(rows), bfloat16((rows, 32, 128)), int32((rows, TABLE_WIDTH)), int32((rows,)))
    return lambda _: Program(run, avals, donate=(0, 1))


def prefill_op(
    paged_prefill: Callable[..., Any], rows: int, tokens: int
) -> Callable[[Mesh], Program]:
    """Write the keys and values of `tokens` tokens of `rows` rows, then let them attend."""

    def run(k_pool, v_pool, layer, blocks, offsets, k, v, q, tables, lens, starts):
        k_pool = xla_write.write_kv(k_pool, layer, blocks, offsets, k)
        v_pool = xla_write.write_kv(v_pool, layer, blocks, offsets, v)
        pools = (k_pool, v_pool, layer)
        out = paged_prefill(q, *pools, tables, lens, starts, scale=128**-0.5)
        return k_pool, v_pool, out

    batch = (int32((rows, TABLE_WIDTH)), int32((rows,)), int32((rows + 1,)))
    avals = (*_written(tokens), bfloat16((tokens, 32, 128)), *batch)
    return lambda _: Program(run, avals, donate=(0, 1))


def _written(tokens: int) -> tuple[Any, ...]:
    values = bfloat16((tokens, 8, 128))
    return POOL, POOL, int32(()), int32((tokens,)), int32((tokens,)), values, values


def kernels_op(case: KernelCase) -> Callable[[Mesh], Program]:
    """The Triton kernels of attention in one configuration, on a pool that takes 64-bit offsets.

    One row's rotation and write come before its decode, as in a step.
    """
    stored = {"fp8": "uint8"}.get(case.pool, case.pool)
    layers, rows, tokens, table = 32, 16, 256, 4096 // case.size
    blocks = 2**33 // (layers * KV_HEADS * case.size * case.width)
    pool = jax.ShapeDtypeStruct((layers, blocks, KV_HEADS, case.size, case.width), stored)
    scales = jax.ShapeDtypeStruct(pool.shape[:-1], jnp.bfloat16)
    pools = [pool, pool, *([scales] * 2 if case.pool in ONE_BYTE else [])]

    def build(mesh: Mesh) -> Program:
        device = tiles.device_of(mesh.devices.flat[0])

        def run(pools, layer, qkv, cos, sin, blocks, offsets, prefill_q, tables, lens, starts):
            decode_q, pools = triton_rope_write.rope_write(
                qkv, cos, sin, pools, layer, blocks, offsets, dtype=case.dtype
            )
            pair = dict(zip(("k_scales", "v_scales"), pools[2:], strict=False))
            read = (*pools[:2], layer, tables, lens)
            one = triton_decode.paged_decode(
                decode_q.reshape(rows, -1, case.width), *read, **pair, **case.options,
                tiles=case.tiles(device), device=device,
                fixed_split_tokens=case.decode_options()["fixed_split_tokens"],
            )  # fmt: skip
            return (
                pools,
                one,
                triton_prefill.paged_prefill(
                    prefill_q, *read, starts, **pair, **case.options, device=device
                ),
            )

        shapes = [(4, rows, KV_HEADS, case.group + 2, case.width), *[(rows, case.width // 2)] * 2]
        floats = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        prefill_q = jax.ShapeDtypeStruct((tokens, KV_HEADS * case.group, case.width), case.dtype)
        written, *batch = (int32(shape) for shape in ((rows,), (rows, table), (rows,), (rows + 1,)))
        avals = (tuple(pools), int32(()), *floats, written, written, prefill_q, *batch)
        return Program(run, avals, donate=0)

    return build


def add_norms(_: Mesh) -> Program:
    """The kernel at several hidden sizes, in both of the data types that it may return."""
    shapes = [(576, jnp.float32), (4096, jnp.float32), (5120, jnp.bfloat16), (16384, jnp.bfloat16)]

    def run(*each):
        return [triton_add_norm.add_norm(*given, 1e-5) for given in each]

    float32 = partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    return Program(run, tuple(
        (float32((16, width)), float32((8, 16, width)), jax.ShapeDtypeStruct((width,), dtype))
        for width, dtype in shapes
    ))  # fmt: skip


def kernel_case(case: KernelCase) -> Case:
    """The expectations on `kernels_op`."""
    join = () if case.splits == "one" else ("paged_decode_join",)
    return Case(
        str(case), kernels_op(case), (20 if case.splits == "fixed" else 4) * MIB, 2**33,
        kernels=("rope_write", "paged_decode", "paged_prefill", *join), launches=8,
        halves=case.dtype == "bfloat16",
    )  # fmt: skip


def mosaic_op(_: Mesh) -> Program:
    """The Mosaic kernel at the shapes of `decode_op`."""
    run = partial(mosaic_decode.paged_decode, scale=128**-0.5)
    rows = (bfloat16((32, 32, 128)), POOL, POOL, int32(()), int32((32, TABLE_WIDTH)), int32((32,)))
    return Program(run, rows)


H200 = ("h200",)  # of cases that say nothing new on another GPU
POOLS = 2 * POOL_BYTES
BETWEEN = ("rope_write", "add_norm")  # the kernels between products
DECODE = (*BETWEEN, "paged_decode", "paged_decode_join")
HIDDEN = MODEL.hidden_size

# Registers a thread, and bytes of shared memory a block, that a kernel may use: two blocks of any
# Triton kernel fit an SM of an H200.
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
    """Expectations on four devices: two sums of hidden states a layer, after `o` and `down`."""
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


# What a GPU without our kernels would run, whole and mixed; they take long to compile.
LONG_CASES = [
    Case("xla step", step("xla", 32, 0, 32), 32 * MIB, POOLS, H200, layers=32, launches=17),
    Case("xla mixed step", step("xla", 32, 512, 2), 128 * MIB, POOLS, H200, layers=2, launches=29),
    Case("xla mixed step, tp 4", step("xla", 32, 512, 2), 64 * MIB, **tp4(544, 2), launches=31),
]


def everything(target: str) -> list[Case]:
    """The full product of the kernels' configurations, and the long cases."""
    kernels = [kernel_case(case) for case in compiled_cases(full=True)]
    return kernels + [case for case in LONG_CASES if target in case.targets]


def summary(report: aot.Report) -> dict[str, Any]:
    """The part of a report that tests look at, for JSON."""
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
    """Compile the named cases, or all of the target, and write {case: summary}.

    The name "everything" stands for what `everything` lists.
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
