"""Programs compiled for GPUs on a machine that has none: memory, kernels, collectives.

The cases are in `tests.support.aot_cases`; one child process per GPU compiles them.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pallas_kernels import aot
from tests.support.aot_cases import CASES, REGISTERS, SHARED_BYTES, everything

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / ".aot"
TIMEOUT = 3600  # seconds

PAIRS = [(target, case) for case in CASES for target in case.targets]
EACH = pytest.mark.parametrize(
    ("target", "case"), PAIRS, ids=[f"{case.name}-{target}" for target, case in PAIRS]
)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """{target: {case: summary}}, see `aot_process.summary`."""
    return compiled(aot.TARGETS, tmp_path_factory.mktemp("aot"))


def compiled(targets, folder, *names):
    """Compile the named cases, or all, in one child process per target; they run concurrently."""
    assert PLUGIN.is_dir(), f"{PLUGIN} is missing; `make test` installs it"
    children, found = {}, {}
    for target in targets:
        dumps = folder / f"{target}_mosaic"
        dumps.mkdir()
        out = folder / f"{target}.json"
        command = [sys.executable, "-m", "tests.support.aot_process", target, out, *names]
        environment = {**os.environ, **aot.environment(PLUGIN, dumps)}
        with open(folder / f"{target}.log", "w") as log:
            children[target] = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
    try:
        for target, child in children.items():
            code = child.wait(TIMEOUT)
            assert code == 0, (folder / f"{target}.log").read_text()[-3000:]
            found[target] = json.loads((folder / f"{target}.json").read_text())
    finally:
        for child in children.values():
            child.kill()
            child.wait()
    return found


def check_kernels(kernels, target, case, registers=REGISTERS):
    """Check spills, registers, shared memory, and that a kernel has the instructions it is for."""
    names = [re.sub(r"_+\d+$", "", kernel["name"]) for kernel in kernels]
    assert set(names) == set(case.kernels)
    for name, kernel in zip(names, kernels, strict=True):
        assert kernel["spill_bytes"] == 0, (case.name, kernel)
        assert kernel["registers"] <= registers[name], (case.name, kernel)
        assert kernel["shared_bytes"] <= SHARED_BYTES, (case.name, kernel)
        if name in ("paged_decode", "paged_prefill"):
            assert kernel["async_copies"] > 0, (case.name, kernel)
            hopper = target == "h200" and name == "paged_prefill"
            products = kernel["wgmma"] if hopper else kernel["mma"]
            assert (products > 0) == case.halves, (case.name, kernel)


@pytest.mark.slow
@pytest.mark.parametrize("target", aot.TARGETS)
def test_all_configurations_and_long_cases(target, tmp_path):
    """Some of these configurations need more registers than the pairwise cases may use; none
    spills."""
    registers = dict.fromkeys(REGISTERS, 255)
    found = compiled([target], tmp_path, "everything")[target]
    for case in everything(target):
        report = found[case.name]
        check_kernels(report["kernels"], target, case, registers)
        assert report["copies"] == [] and report["temporary_bytes"] <= case.temporaries
        assert sum(report["launches"].values()) / case.layers <= case.launches


@EACH
def test_nothing_large_is_copied(reports, target, case):
    assert reports[target][case.name]["copies"] == []


@EACH
def test_temporaries_are_bounded(reports, target, case):
    assert reports[target][case.name]["temporary_bytes"] <= case.temporaries


@EACH
def test_pools_are_updated_in_place(reports, target, case):
    assert reports[target][case.name]["aliased_bytes"] >= case.aliased


@EACH
def test_devices_exchange_only_sums_of_hidden_states(reports, target, case):
    exchanged = reports[target][case.name]["collectives"]
    assert Counter((op, kind, tuple(shape)) for op, kind, shape in exchanged) == case.exchanges


@EACH
def test_no_pool_leaves_its_device(reports, target, case):
    """Exchanged arrays have at most 3 axes; one layer of a pool has 4."""
    exchanged = reports[target][case.name]["collectives"]
    assert [shape for _, _, shape in exchanged if len(shape) > 3] == []


@EACH
def test_kernels_fit_the_gpu(reports, target, case):
    check_kernels(reports[target][case.name]["kernels"], target, case)


@EACH
def test_launches_per_layer(reports, target, case, record_property):
    report = reports[target][case.name]
    outside, inside = (
        sum(report[key].values()) / case.layers for key in ("launches", "launches_in_loops")
    )
    record_property("launches_per_layer", outside)
    record_property("launches_in_loops_per_layer", inside)
    assert outside <= case.launches
    besides = outside - report["products"] / case.layers
    record_property("launches_besides_products_per_layer", besides)
    assert besides <= case.besides


HLO = """
ENTRY %main {
  %copy.1 = bf16[2,1024]{1,0} copy(%a)
  ROOT %copy-start.2 = (f32[8]{0:S(5)}, f32[8]{0}, u32[]) copy-start(%b)
  %all-reduce = (f32[4]{0}, f32[5]{0}) all-reduce(%c, %d), to_apply=%add
  %all-gather-start = ((bf16[2,4]{1,0}), bf16[8,4]{1,0}) all-gather-start(%e), dimensions={0}
  %all-gather-start.1 = (bf16[2,3]{1,0}, bf16[8,3]{1,0}) all-gather-start(%f), dimensions={0}
  %all-gather-done = bf16[8,4]{1,0} all-gather-done(%all-gather-start)
}
"""
SCHEDULE = """\
001: kCopy         [source       | next=004 (3)] kCopy
002: kCustomKernel [source | sink] add_7 grid: [2, 3, 1] threads: [64, 2, 1]  shared_memory: 9 bytes
003: kWhile        [prev=003 (1) | sink        ]
condition:
    004: kCustomKernel [source] less grid: [1, 1, 1] threads: [1, 1, 1]  shared_memory: 0 bytes
  body:
    005: kAsyncStart   [source       | next=011 (3)] stream=computation_stream[0], async_id=6
        006: kGemm [source | sink] kGemm
007: kCustomKernel [source | sink] add_8 grid: [2, 3, 1] threads: [64, 2, 1]  shared_memory: 0 bytes
"""


def test_reports_are_parsed(tmp_path):
    (tmp_path / "module.thunk_sequence.txt").write_text(SCHEDULE)
    schedule = tuple(aot.schedule_of(tmp_path))
    report = aot.Report(0, 0, 0, kernels=(), schedule=schedule, hlo=HLO, seconds=0)
    assert report.copies(1) == [("bf16", (2, 1024)), ("f32", (8,))]
    assert report.copies(33) == [("bf16", (2, 1024))]
    assert report.collectives() == [
        ("all-reduce", "f32", (4,)), ("all-reduce", "f32", (5,)),
        ("all-gather", "bf16", (8, 4)), ("all-gather", "bf16", (8, 3)),
    ]  # fmt: skip
    assert report.launches() == {"Copy": 1, "add": 2} and report.launched_products() == 0
    assert report.launches(in_loops=True) == {"less": 1, "Gemm": 1}
    assert (schedule[1].grid, schedule[1].threads, schedule[1].shared_bytes) == ((2, 3, 1), 128, 9)


def test_a_missing_plugin_is_named(monkeypatch):
    def missing(**_):
        raise NotImplementedError("topology not implemented for cuda")

    monkeypatch.setattr(aot.topologies, "get_topology_desc", missing)
    with pytest.raises(RuntimeError, match=r"pagedjax\[aot\].*pip install"):
        aot.mesh_for(aot.TARGETS["h200"])


def test_environment_leaves_os_environ_unchanged(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    before = dict(os.environ)
    added = aot.environment(tmp_path)
    assert added["PYTHONPATH"] == f"{tmp_path}{os.pathsep}elsewhere"
    assert dict(os.environ) == before and "MOSAIC_GPU_DUMP_TO" not in added
