"""Compiles the cases of `test_aot.py` for one absent GPU: `python -m tests.aot_process TARGET OUT`.

It is a process of its own because XLA's CUDA plugin is not in the environment of the tests (see
`pallas_kernels.aot.environment`). The table below is all there is to a case; a new kernel is a
new line of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pagedjax.batch import StepBatch
from pagedjax.config import ModelConfig, RopeScaling
from pagedjax.kv_cache import POOL_SPEC, KVCache, pool_shape
from pagedjax.models import llama
from pagedjax.params import build_tree
from pagedjax.step import EngineState, StepConfig, forward
from pallas_kernels import aot, mosaic_decode, tiles, triton_decode, triton_prefill, xla
from tests.kernel_cases import KV_HEADS, ONE_BYTE, KernelCase, compiled_cases

MIB = 1 << 20
LARGE_COPY = 16 * MIB

# LLaMA-3-8B with a pool of 20 GiB each for keys and values, of 32 layers whatever is compiled.
MODEL = ModelConfig(
    vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_layers=32, num_heads=32,
    num_kv_heads=8, head_dim=128, max_position_embeddings=8192, rope=RopeScaling(theta=500_000.0),
)  # fmt: skip
BLOCK_SIZE, NUM_BLOCKS, TABLE_WIDTH, SLOTS = 16, 20480, 512, 64
POOL_BYTES = 20 << 30

bfloat16 = partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
int32 = partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
POOL = bfloat16(pool_shape(MODEL, NUM_BLOCKS, BLOCK_SIZE))


@dataclass(frozen=True)
class Program:
    """What `aot.compile_for` takes."""

    fn: Callable[..., Any]
    avals: tuple[Any, ...]
    donate: int | tuple[int, ...] = ()
    shardings: Any = None


@dataclass(frozen=True)
class Case:
    """A program to compile and what must come out of it. Bytes are per device.

    build: makes the program for a mesh.
    temporaries: bytes that it may need beyond its arguments.
    aliased: bytes that it must update in place.
    kernels: names of all its Pallas kernels.
    launches: that it may make outside loops, per layer, what comes before and after included.
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
    exchanges: Mapping[tuple[str, str, tuple[int, ...]], int] = field(default_factory=dict)
    halves: bool = True


def decode_op(paged_decode: Callable[..., Any], rows: int) -> Callable[[Mesh], Program]:
    """Write the keys and values of `rows` rows, then let each row's query attend."""

    def run(k_pool, v_pool, layer, blocks, offsets, k, v, q, tables, lens):
        k_pool = xla.write_kv(k_pool, layer, blocks, offsets, k)
        v_pool = xla.write_kv(v_pool, layer, blocks, offsets, v)
        out = paged_decode(q, k_pool, v_pool, layer, tables, lens, scale=128**-0.5)
        return k_pool, v_pool, out

    avals = (*_written(rows), bfloat16((rows, 32, 128)), int32((rows, TABLE_WIDTH)), int32((rows,)))
    return lambda _: Program(run, avals, donate=(0, 1))


def prefill_op(
    paged_prefill: Callable[..., Any], rows: int, tokens: int
) -> Callable[[Mesh], Program]:
    """Write the keys and values of `tokens` tokens of `rows` rows, then let them attend."""

    def run(k_pool, v_pool, layer, blocks, offsets, k, v, q, tables, lens, starts):
        k_pool = xla.write_kv(k_pool, layer, blocks, offsets, k)
        v_pool = xla.write_kv(v_pool, layer, blocks, offsets, v)
        pools = (k_pool, v_pool, layer)
        out = paged_prefill(q, *pools, tables, lens, starts, scale=128**-0.5)
        return k_pool, v_pool, out

    batch = (int32((rows, TABLE_WIDTH)), int32((rows,)), int32((rows + 1,)))
    avals = (*_written(tokens), bfloat16((tokens, 32, 128)), *batch)
    return lambda _: Program(run, avals, donate=(0, 1))


def _written(tokens: int) -> tuple[Any, ...]:
    values = bfloat16((tokens, 8, 128))
    return POOL, POOL, int32(()), int32((tokens,)), int32((tokens,)), values, values


def step(
    implementation: str, decode_rows: int, tokens: int, layers: int
) -> Callable[[Mesh], Program]:
    """The engine's forward program, with the shapes that `batch.Packer` makes."""

    def build(mesh: Mesh) -> Program:
        config = replace(MODEL, num_layers=layers)
        rules = llama.param_rules(config)
        params = build_tree({rule.path: bfloat16(rule.shape) for rule in rules})
        state = EngineState(KVCache(POOL, POOL), int32((SLOTS,)), int32((SLOTS,)))
        chunks = min(SLOTS, tokens)
        batch = StepBatch(
            decode_slots=int32((decode_rows,)),
            decode_tables=int32((decode_rows, TABLE_WIDTH)),
            tokens=int32((tokens,)),
            positions=int32((tokens,)),
            query_starts=int32((chunks + 1,)),
            context_lens=int32((chunks,)),
            tables=int32((chunks, TABLE_WIDTH)),
            logit_rows=int32((decode_rows,)),
            logit_slots=int32((decode_rows,)),
        )
        specs = (
            build_tree({rule.path: rule.spec for rule in rules}),
            EngineState(KVCache(POOL_SPEC, POOL_SPEC), P(), P()),
            P(),
        )
        run = partial(forward, StepConfig(config, mesh, implementation))
        return Program(run, (params, state, batch), donate=1, shardings=specs)

    return build


def kernels_op(case: KernelCase) -> Callable[[Mesh], Program]:
    """Both Triton kernels in one configuration, on a pool that takes 64-bit offsets."""
    stored = {"fp8": "uint8"}.get(case.pool, case.pool)
    layers, rows, tokens, table = 32, 16, 256, 4096 // case.size
    blocks = 2**33 // (layers * KV_HEADS * case.size * case.width)
    pool = jax.ShapeDtypeStruct((layers, blocks, KV_HEADS, case.size, case.width), stored)
    scales = jax.ShapeDtypeStruct(pool.shape[:-1], jnp.bfloat16)
    heads = KV_HEADS * case.group

    def build(mesh: Mesh) -> Program:
        device = tiles.device_of(mesh.devices.flat[0])

        def run(decode_q, prefill_q, k_pool, v_pool, layer, tables, lens, starts, *pair):
            options = dict(zip(("k_scales", "v_scales"), pair, strict=False)) | case.options
            pools = (k_pool, v_pool, layer, tables, lens)
            one = triton_decode.paged_decode(
                decode_q, *pools, **options, tiles=case.tiles(device), device=device,
                fixed_split_tokens=case.decode_options()["fixed_split_tokens"],
            )  # fmt: skip
            return one, triton_prefill.paged_prefill(
                prefill_q, *pools, starts, **options, device=device
            )

        queries = [
            jax.ShapeDtypeStruct((count, heads, case.width), case.dtype) for count in (rows, tokens)
        ]
        numbers = [int32(shape) for shape in ((), (rows, table), (rows,), (rows + 1,))]
        extra = [scales] * 2 if case.pool in ONE_BYTE else []
        return Program(run, (*queries, pool, pool, *numbers, *extra))

    return build


def kernel_case(case: KernelCase) -> Case:
    """The expectations on `kernels_op`."""
    join = () if case.splits == "one" else ("paged_decode_join",)
    return Case(
        str(case), kernels_op(case), (20 if case.splits == "fixed" else 4) * MIB,
        kernels=("paged_decode", "paged_prefill", *join), launches=8,
        halves=case.dtype == "bfloat16",
    )  # fmt: skip


def mosaic_op(_: Mesh) -> Program:
    """The Mosaic kernel at the shapes of `decode_op`."""
    run = partial(mosaic_decode.paged_decode, scale=128**-0.5)
    rows = (bfloat16((32, 32, 128)), POOL, POOL, int32(()), int32((32, TABLE_WIDTH)), int32((32,)))
    return Program(run, rows)


H200 = ("h200",)  # of cases that say nothing new on another GPU
POOLS = 2 * POOL_BYTES
DECODE = ("paged_decode", "paged_decode_join")
HIDDEN = MODEL.hidden_size

# Registers a thread, and bytes of shared memory a block, that a kernel may use: two blocks of any
# Triton kernel fit an SM of an H200.
REGISTERS = {
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
    Case("xla decode", decode_op(xla.paged_decode, 32), 16 * MIB, POOLS, launches=10),
    Case("xla prefill", prefill_op(xla.paged_prefill, 8, 512), 32 * MIB, POOLS, launches=14),
    Case("xla step, 2 layers", step("xla", 32, 0, 2), 32 * MIB, POOLS, layers=2, launches=22),
    Case("xla step, tp 4", step("xla", 32, 0, 2), 32 * MIB, **tp4(32, 2), launches=24),
    Case("pallas step", step("pallas", 32, 0, 32), 16 * MIB, POOLS, H200, layers=32, launches=16,
         kernels=DECODE),
    Case("pallas step, 2 layers", step("pallas", 16, 0, 2), 16 * MIB, POOLS, layers=2, launches=22,
         kernels=DECODE),
    Case("pallas mixed step", step("pallas", 16, 512, 2), 128 * MIB, POOLS, layers=2, launches=28,
         kernels=(*DECODE, "paged_prefill")),
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
