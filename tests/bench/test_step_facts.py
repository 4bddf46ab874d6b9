"""Counts and arithmetic of `bench.step_facts`; `test_aot` compiles such steps."""

import json

import pytest

from bench import step_facts
from pallas_kernels.aot import Report
from pallas_kernels.aot_report import Kernel, Launch


def report():
    """A step with one product, two of our kernels, a fusion, a copy, and a kernel in a loop."""
    names = [("CustomKernel", "gemm_fusion_dot_3"), ("CustomKernel", "add_norm"),
             ("CustomKernel", "add_norm__1"), ("CustomKernel", "loop_convert_fusion_1"),
             ("Copy", "Copy")]  # fmt: skip
    schedule = tuple(Launch(kind, name, in_loop=False) for kind, name in names)
    kernels = (Kernel("add_norm", 60, 0, 0, 0, (1,), 32, ""),
               Kernel("add_norm__1", 61, 4, 0, 0, (1,), 32, ""))  # fmt: skip
    inside = Launch("CustomKernel", "less", in_loop=True)
    hlo = "  %copy.1 = bf16[16,1048576]{1,0} copy(%a)\n"
    return Report(7, 0, 9, kernels=kernels, schedule=(*schedule, inside), hlo=hlo, seconds=0)


def test_each_launch_is_counted_once():
    found = step_facts.counts(report())
    per_layer = {key: found[f"{key}_per_layer"] * 32 for key in ("products", "kernels")}
    assert per_layer == {"products": 1, "kernels": 2}
    assert found["elementwise_per_layer"] * 32 == 1 and found["copies"] == 1
    assert (found["launches"], found["besides_products_per_layer"] * 32) == (5, 4)
    assert found["large_copies"] == [("bf16", (16, 1048576))]
    assert (found["launches_in_loops"], found["spill_bytes"]) == (1, 4)


def test_bytes_are_those_of_the_weights_and_of_the_keys():
    """LLaMA-3-8B has 6.98e9 numbers in its layers' matrices, and 128 KiB of keys a token."""
    found = step_facts.arithmetic("h200", 32, 1024)
    assert found["weight_bytes"] == 2 * 32 * 4096 * (6144 + 4096 + 3 * 14336)
    assert found["kv_bytes"] == 32 * 1024 * (128 << 10)
    assert found["byte_limit_seconds"] == pytest.approx(3.80e-3, rel=2e-3)
    assert found["flops"] == 32 * (found["weight_bytes"] + 4 * 1024 * 4096 * 32)


def test_result_is_labelled_as_not_measured(monkeypatch, tmp_path, capsys):
    def gathered(target, rows, implementation, context):
        return [
            {"target": target, "rows": count, **step_facts.counts(report()),
             **step_facts.arithmetic(target, count, context)}
            for count in rows
        ]  # fmt: skip

    monkeypatch.setattr(step_facts, "gather", gathered)
    out = tmp_path / "facts.json"
    assert step_facts.main(["--json", str(out), "--context", "64"]) == 0
    result = json.loads(out.read_text())
    assert result["what"] == "compiled facts and arithmetic, not measurements"
    assert [each["rows"] for each in result["steps"]] == [1, 8, 32, 64, 128, 256, 32]
    assert {each["context"] for each in result["steps"]} == {64}
    assert "not measurements" in capsys.readouterr().out


def test_a_missing_folder_is_named_before_anything_is_compiled(tmp_path, capsys):
    assert step_facts.main(["--json", str(tmp_path / "nowhere" / "facts.json")]) == 1
    assert "there is no folder for" in capsys.readouterr().err
