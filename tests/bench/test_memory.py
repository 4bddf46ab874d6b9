"""The memory benchmark's command: bytes per token, a small run, its table, and its errors."""

import json
import sys

import pytest

from bench.memory import command as memory
from bench.memory import report as memory_report
from bench.memory.contiguous import RESERVATIONS

KIB = 1024
SHARES = ("stored", "reserved", "internal", "external", "idle")


@pytest.mark.parametrize(
    "model, kib", [("LLaMA-7B", 512), ("LLaMA-13B", 800), ("LLaMA-2-70B", 320)]
)
def test_bytes_of_a_token(model, kib):
    """2 x layers x kv heads x head dim x 2 bytes, and the 15.7K slots of arXiv 2309.06180."""
    assert memory.bytes_per_token(model) == kib * KIB
    assert memory.num_slots() == 12 * KIB**3 // (800 * KIB) == 15728


def run(options, capsys):
    status = memory.main(options.split())
    printed = capsys.readouterr()
    assert status == 0, printed.err
    return printed.out


def test_a_small_run(tmp_path, capsys):
    """End to end: the same JSON for the same seed, all tables, and the chart."""
    pytest.importorskip("matplotlib")
    path, chart = tmp_path / "out.json", tmp_path / "chart.png"
    out = run(f"--requests 20 --seed 5 --json {path} --plot {chart}", capsys)
    result = json.loads(path.read_text())
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert len(result["steady_state"]) == 3 * (len(RESERVATIONS) + 3)
    for each in result["steady_state"]:
        assert sum(each[name] for name in SHARES) == pytest.approx(1)
        assert (each["block_size"] is None) == ("closed_form_waste" not in each)
    assert len(result["sharing"]) == 2 * (3 + 3 * 3) and len(result["common_prompt"]) == 4
    for each in result["sharing"] + result["common_prompt"]:
        sizes = each["saved_bytes"]
        assert sizes["LLaMA-7B"] == pytest.approx(each["saved_blocks"] * 16 * 512 * KIB, abs=1)
        assert sizes["LLaMA-13B"] / sizes["LLaMA-2-70B"] == pytest.approx(2.5)
    assert str(tmp_path) not in path.read_text()
    for text in ("reserve 2,048", "paged, blocks of 16", "6-10 %", "37-66 %", "points: "):
        assert text in out
    run(f"--requests 20 --seed 5 --json {path}", capsys)
    again = json.loads(path.read_text())
    assert {**again, "header": 0} == {**result, "header": 0}


def test_a_table_is_aligned():
    assert memory_report.table(("a", "bb"), [("ccc", "1"), ("d", "222")]) == [
        "a     bb", "---  ---", "ccc    1", "d    222",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "options, message",
    [
        ("--requests 9", "error: --requests must be at least 10"),
        ("--seed -1", "error: --seed must not be negative"),
        ("--plot MISSING/x.png", "error: there is no folder for MISSING"),
    ],
)
def test_invalid_options_end_in_one_line(options, message, capsys):
    assert memory.main(options.split()) == 1
    said = capsys.readouterr().err
    assert said.startswith(message) and said.count("\n") == 1


def test_no_matplotlib_is_one_clear_error(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert memory.main(["--plot", "chart.png"]) == 1
    assert capsys.readouterr().err.startswith("error: a plot needs matplotlib")
