"""Compile for a GPU on a machine that has none, and report on the compiled program.

XLA's CUDA plugin can compile for a described device as well as for an attached one. It needs a few
wheels besides jax (the extra `aot`), but no driver, toolkit or cuDNN. It must not be installed in
the same folder as a jax for CPU, which would search for a GPU at every start and warn: a child
process gets it through `environment`. The report describes the program that a GPU would run,
except that XLA's autotuning cannot measure, so its own matrix products may be tiled differently.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pallas_kernels.aot_report import (
    CUSTOM_KERNEL,
    INSTALL,
    Report,
    kernels_of,
    mosaic_kernels,
    schedule_of,
)


@dataclass(frozen=True)
class Target:
    """A GPU as described to the compiler.

    Sources: data sheets, and the table of compute capabilities in NVIDIA's CUDA guide.
    """

    name: str
    device_kind: str
    capability: tuple[int, int]
    cores: int  # streaming multiprocessors
    memory_bytes: int
    bandwidth: int  # bytes per second
    l2_bytes: int
    clock_ghz: float
    shared_bytes_per_core: int
    shared_bytes_per_block: int  # opt-in maximum; the default is 48 KiB

    def description(self) -> str:
        """Return XLA's GpuTargetConfigProto in text format."""
        major, minor = self.capability
        return f"""
            gpu_device_info {{
              cuda_compute_capability {{ major: {major} minor: {minor} }}
              core_count: {self.cores}
              fpus_per_core: {64 if self.capability == (8, 0) else 128}
              clock_rate_ghz: {self.clock_ghz}
              device_memory_size: {self.memory_bytes}
              memory_bandwidth: {self.bandwidth}
              l2_cache_size: {self.l2_bytes}
              shared_memory_per_block: 49152
              shared_memory_per_block_optin: {self.shared_bytes_per_block}
              shared_memory_per_core: {self.shared_bytes_per_core}
              registers_per_core_limit: 65536
              registers_per_block_limit: 65536
              threads_per_warp: 32
              threads_per_block_limit: 1024
              threads_per_core_limit: 2048
              block_dim_limit_x: 2147483647
              block_dim_limit_y: 65535
              block_dim_limit_z: 65535
            }}
            platform_name: "CUDA"
            dnn_version_info {{ major: 9 minor: 12 }}
            device_description_str: "{self.device_kind}"
        """


TARGETS = {
    "h200": Target(
        "h200", "NVIDIA H200", (9, 0), 132, 141 << 30, 4_800_000_000_000,
        l2_bytes=50 << 20, clock_ghz=1.98,
        shared_bytes_per_core=228 << 10, shared_bytes_per_block=227 << 10,
    ),
    "a100": Target(
        "a100", "NVIDIA A100-SXM4-80GB", (8, 0), 108, 80 << 30, 2_039_000_000_000,
        l2_bytes=40 << 20, clock_ghz=1.41,
        shared_bytes_per_core=164 << 10, shared_bytes_per_block=163 << 10,
    ),
}  # fmt: skip


def environment(folder: Path, mosaic_dumps: Path | None = None) -> dict[str, str]:
    """Environment variables for a process that compiles with the plugin in `folder`.

    mosaic_dumps: existing folder, used by that process only, for the dumps of Mosaic kernels,
    which XLA does not dump; without it the reports do not include them.
    """
    folder = folder.absolute()
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    added = {
        "PYTHONPATH": os.pathsep.join(path),
        "CUDA_ROOT": str(folder / "nvidia" / "cu13"),  # takes precedence over an installed toolkit
        "JAX_PLATFORMS": "cpu",  # load the plugin without opening a device
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # no driver whose version to check
        "JAX_ENABLE_COMPILATION_CACHE": "0",  # a cached program writes no dumps
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    if mosaic_dumps is not None:
        added["MOSAIC_GPU_DUMP_TO"] = str(mosaic_dumps)
    return added


def mesh_for(target: Target, num_devices: int = 1, axis: str = "tp") -> Mesh:
    """A mesh of described devices of one host, for compiling only.

    Raises RuntimeError, which names the packages to install, if the plugin cannot be loaded.
    """
    try:
        described = topologies.get_topology_desc(
            platform="cuda",
            target_config=target.description(),
            topology=f"1x1x{num_devices}",  # partitions x hosts x devices per host
        )
    except (NotImplementedError, RuntimeError, AssertionError) as error:
        raise RuntimeError(
            f"XLA's CUDA plugin does not load ({error}). Needed: {INSTALL}"
        ) from error
    return topologies.make_mesh(described, (num_devices,), (axis,)).update(
        axis_types=(AxisType.Auto,)
    )


def compile_for(
    mesh: Mesh,
    fn: Callable[..., Any],
    *avals: Any,
    donate_argnums: int | tuple[int, ...] = (),
    shardings: Any = None,
    kernels: str | None = None,
) -> Report:
    """Compile `fn` for the devices of `mesh`.

    avals: pytrees of ShapeDtypeStruct; those without a sharding are replicated.
    shardings: a tuple with one PartitionSpec, or tree prefix of PartitionSpecs, per argument.
    kernels: regular expression; kernels whose full name matches are reported, by default the
        Pallas kernels. All Mosaic kernels are reported in any case.
    """
    if shardings is None:
        shardings = (PartitionSpec(),) * len(avals)
    avals = jax.tree.map(
        lambda spec, tree: jax.tree.map(lambda aval: _placed(aval, mesh, spec), tree),
        shardings, avals, is_leaf=lambda spec: isinstance(spec, PartitionSpec),
    )  # fmt: skip
    start = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="aot-") as dumps,
        jax.default_device(mesh.devices.flat[0]),  # where Mosaic reads the compute capability
        jax.sharding.use_abstract_mesh(mesh.abstract_mesh),  # where Triton reads it
    ):
        lowered = jax.jit(fn, donate_argnums=donate_argnums).lower(*avals)
        # The second option dumps PTX. In XLA_FLAGS it would corrupt compilations for the CPU.
        options = {"xla_dump_to": dumps, "xla_dump_emitter_re": "ptx"}
        compiled = lowered.compile(compiler_options=options)
        seconds = time.perf_counter() - start
        hlo, schedule = compiled.as_text() or "", tuple(schedule_of(Path(dumps)))
        wanted = kernels or "|".join(rf"{name}(_+\d+)?" for name in CUSTOM_KERNEL.findall(hlo))
        found = [*kernels_of(Path(dumps), wanted, schedule), *mosaic_kernels()]
    memory = compiled.memory_analysis()
    assert memory is not None, "the plugin does not report a program's memory"
    return Report(
        memory.temp_size_in_bytes, memory.argument_size_in_bytes, memory.alias_size_in_bytes,
        kernels=tuple(found), schedule=schedule, hlo=hlo, seconds=seconds,
    )  # fmt: skip


def _placed(aval: Any, mesh: Mesh, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
    sharding = getattr(aval, "sharding", None) or NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
