"""Report of an ahead-of-time compilation: kernels, launches, copies and collectives."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

INSTALL = (
    "the extra `pagedjax[aot]`, best in a folder beside jax: "
    "pip install --target .aot --no-deps jax-cuda13-pjrt==JAX jax-cuda13-plugin==JAX "
    "nvidia-cuda-nvcc nvidia-nvvm, where JAX is the version of jax"
)
COLLECTIVES = "all-gather all-reduce all-to-all collective-permute reduce-scatter".split()


@dataclass(frozen=True)
class Kernel:
    """One kernel as ptxas assembled it, and its launch parameters.

    spill_bytes: stores and loads together.
    dynamic_shared_bytes, grid, threads: from XLA's schedule or Mosaic's dump.
    """

    name: str
    registers: int  # per thread
    spill_bytes: int
    static_shared_bytes: int  # per thread block
    dynamic_shared_bytes: int
    grid: tuple[int, ...]
    threads: int  # per thread block
    ptx: str = field(repr=False)

    @property
    def shared_bytes(self) -> int:
        """Static and dynamic shared memory per thread block."""
        return self.static_shared_bytes + self.dynamic_shared_bytes

    def counts(self, pattern: str) -> int:
        """Count the matches of a regular expression in the PTX, e.g. `wgmma\\.mma_async`."""
        return len(re.findall(pattern, self.ptx))


@dataclass(frozen=True)
class Launch:
    """A launch of the compiled program on the GPU; within a loop, once per iteration."""

    kind: str  # XLA's name for it: CustomKernel, Copy, Gemm, CustomCall, AllReduce, ...
    name: str  # the kernel's name; for launches that are not kernels, the kind
    in_loop: bool
    grid: tuple[int, ...] = ()
    threads: int = 0  # per thread block
    shared_bytes: int = 0  # dynamic, per thread block


@dataclass(frozen=True)
class Report:
    """The results of one compilation. Bytes are per device."""

    temporary_bytes: int
    argument_bytes: int
    aliased_bytes: int
    kernels: tuple[Kernel, ...]
    schedule: tuple[Launch, ...] = field(repr=False)
    hlo: str = field(repr=False)
    seconds: float  # to trace, lower and compile

    def copies(self, at_least_bytes: int) -> list[tuple[str, tuple[int, ...]]]:
        """Data type and shape of every copy of at least that size, also of those in fusions."""
        shapes = [_shapes(type)[0] for op, type in self._of("copy", "copy-start")]
        return [each for each in shapes if _bytes(*each) >= at_least_bytes]

    def collectives(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """Operation, data type and shape of every array that a collective returns.

        One operation may return several arrays.
        """
        found = []
        for op, type in self._of(*COLLECTIVES, *(f"{each}-start" for each in COLLECTIVES)):
            shapes, name = _shapes(type), op.removesuffix("-start")
            if type.startswith("(("):  # (operands, results)
                shapes = shapes[len(_shapes(type[: type.index(")")])) :]
            elif op in ("all-gather-start", "collective-permute-start"):
                shapes = shapes[1:2]  # of operand, result and possibly a context
            found += [(name, *shape) for shape in shapes]
        return found

    def _of(self, *wanted: str) -> list[tuple[str, str]]:
        """Operation and type of the instructions whose operation is in `wanted`."""
        found = INSTRUCTION.finditer(self.hlo)
        return [(each["op"], each["type"]) for each in found if each["op"] in wanted]

    def launches(self, in_loops: bool = False) -> Counter[str]:
        """Count launches outside loops by name, or with `in_loops` those per loop iteration.

        Numeric suffixes that make kernel names unique are removed, so that layers are added up.
        """
        names = (each.name for each in self.schedule if each.in_loop == in_loops)
        return Counter(re.sub(r"_+\d+(?=$|_remat)", "", name) for name in names)

    def launched_products(self) -> int:
        """Count launches of matrix products outside loops, XLA's own and those of libraries."""
        return sum(
            PRODUCT.search(f"{each.kind} {each.name}") is not None
            for each in self.schedule
            if not each.in_loop
        )


SHAPE = re.compile(r"\b([a-z]+\d+(?:e\d\w*)?|pred)\[([\d,]*)\]")
INSTRUCTION = re.compile(r"^ *(?:ROOT )?%?[\w.\-]+ = (?P<type>\(.*?\)|\S+) (?P<op>[\w\-]+)\(", re.M)
# A line of XLA's schedule, "013: kCustomKernel [...] NAME grid: [2, 1, 1] threads: [4, 1, 1] ...".
THUNK = re.compile(r"^(?P<indent> *)\d+: k(?P<kind>\w+) +\[[^\]]*\] *(?P<rest>.*)$", re.M)
KERNEL_THUNK = re.compile(
    r"(?P<name>\S+) grid: \[(?P<grid>.*?)\] threads: \[(?P<threads>.*?)\] +"
    r"shared_memory: (?P<shared>\d+) bytes"
)
NOT_LAUNCHED = re.compile(r"While|Conditional|Sequential|Async\w*|DynamicSliceFusion|\w*Done")
# Fusions that contain a matrix product are found by name, library calls by kind.
PRODUCT = re.compile("gemm_fusion|Gemm|Cublas")
CUSTOM_KERNEL = re.compile(r'custom_call_target="__gpu\$xla\.gpu\.triton".*? name = "(\w+)"')
# A launch in Mosaic's dump. Its sizes are constants that MLIR names by their value: `%c128`.
MOSAIC_LAUNCH = re.compile(
    r"gpu\.launch .*?blocks\(.*?\) in \((?P<grid>.*?)\) threads\(.*?\) in \((?P<threads>.*?)\)"
    r" dynamic_shared_memory_size %c(?P<shared>\d+)"
)


def schedule_of(dumps: Path) -> Iterator[Launch]:
    """Yield the launches of the compiled program, in order."""
    above: list[tuple[int, str]] = []  # indents and kinds of the enclosing thunks
    for dump in dumps.glob("*.thunk_sequence.txt"):
        for match in THUNK.finditer(dump.read_text()):
            indent, kind = len(match["indent"]), match["kind"]
            while above and above[-1][0] >= indent:
                above.pop()
            above.append((indent, kind))
            if NOT_LAUNCHED.fullmatch(kind):
                continue
            in_loop = "While" in (kind for _, kind in above)
            kernel = KERNEL_THUNK.match(match["rest"])
            if kernel is None:
                yield Launch(kind, kind, in_loop)
            else:
                threads = math.prod(_dims(kernel["threads"]))
                grid, shared = _dims(kernel["grid"]), int(kernel["shared"])
                yield Launch(kind, kernel["name"], in_loop, grid, threads, shared)


def kernels_of(dumps: Path, wanted: str, schedule: tuple[Launch, ...]) -> Iterator[Kernel]:
    """Yield the kernels in XLA's dump whose full names match `wanted`."""
    launches = {each.name: each for each in schedule}
    for dump in sorted(dumps.glob("*.ptx")):
        ptx = dump.read_text()
        for name in re.findall(r"\.entry (\w+)", ptx):
            if re.fullmatch(wanted, name):
                at = launches[name]
                yield Kernel(
                    name, *_assembled(dump, name), at.shared_bytes, at.grid, at.threads, ptx
                )


def mosaic_kernels() -> Iterator[Kernel]:
    """Yield the kernels that Mosaic dumped since the last call, and delete the dumps."""
    folder = os.environ.get("MOSAIC_GPU_DUMP_TO")
    if not folder or not Path(folder).is_dir():
        return
    for dump in sorted(Path(folder).glob("*.ptx")):
        ptx = dump.read_text()
        (name,) = re.findall(r"\.entry (\w+)", ptx)
        launch = MOSAIC_LAUNCH.search(dump.with_suffix(".after_layout_inference.txt").read_text())
        assert launch is not None, f"{dump} has no launch"
        grid, threads = (
            tuple(map(int, re.findall(r"= %c(\d+)", launch[part]))) for part in ("grid", "threads")
        )
        shared = int(launch["shared"])
        yield Kernel(name, *_assembled(dump, name), shared, grid, math.prod(threads), ptx)
    for dump in Path(folder).iterdir():
        dump.unlink()


def _assembled(dump: Path, name: str) -> tuple[int, int, int]:
    """Registers, spilled bytes and static shared bytes of one kernel of a PTX file."""
    arch = re.search(r"\.target (\w+)", dump.read_text())
    assert arch is not None, dump
    command = [str(_ptxas()), "-v", f"-arch={arch[1]}", str(dump), "-o", os.devnull]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"ptxas refused {name}: {result.stderr}")
    said = result.stderr.split(f"Compiling entry function '{name}'")[1].split("Compiling entry")[0]

    def number(pattern: str) -> int:
        return sum(map(int, re.findall(pattern, said)))

    return (
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes spill (?:stores|loads)"),
        number(r"(\d+) bytes smem"),
    )


def _ptxas() -> Path:
    """The ptxas of the wheels; an installed toolkit's may be too old for the PTX."""
    nvidia = importlib.util.find_spec("nvidia")
    roots = [Path(os.environ.get("CUDA_ROOT", "/nowhere"))]
    roots += [Path(each) / "cu13" for each in (nvidia and nvidia.submodule_search_locations) or ()]
    for root in roots:
        if (root / "bin" / "ptxas").exists():
            return root / "bin" / "ptxas"
    raise RuntimeError(f"no ptxas found in {', '.join(map(str, roots))}. Needed: {INSTALL}")


def _shapes(type: str) -> list[tuple[str, tuple[int, ...]]]:
    return [(kind, _dims(dims)) for kind, dims in SHAPE.findall(type)]


def _dims(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",") if each.strip())


def _bytes(kind: str, shape: tuple[int, ...]) -> int:
    bits = int(digits[0]) if (digits := re.findall(r"\d+", kind)) else 8  # pred takes a byte
    return math.prod(shape) * bits // 8
