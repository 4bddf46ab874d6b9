"""The attention benchmark's command: a small run, skipped cases, and its errors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.attention import command as attention
from bench.attention import interpreted, roofline
from bench.attention import report as attention_report
from bench.attention import trial as attention_trial

TINY = "--shapes smollm2-135m --batches 1 --contexts 32 --chunk 8 --repeats 1 --no-facts"


@pytest.fixture(autouse=True)
def small_copies(monkeypatch):
    monkeypatch.setattr(roofline, "CPU_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(roofline, "CPU_SQUARE", 128)


def test_interpreted_kernels_are_reported(monkeypatch):
    monkeypatch.setattr(interpreted, "DTYPES", ("bf16",))
    found = list(interpreted.checks(("xla-online", "triton"), ("decode",)))
    assert [(each["path"], each["status"]) for each in found] == [("triton", "agrees")]
    lines = attention_report.check_lines(
        [*found, {**found[0], "reason": "why", "status": "failed"}]
    )
    assert lines[-2].startswith("  triton decode bf16: difference ")
    assert lines[-1] == "  triton decode bf16: failed: why"


def test_a_small_run(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path, chart = tmp_path / "out.json", tmp_path / "out.png"
    options = f"{TINY} --paths xla-gather,xla-online,cudnn-dense --json {path} --plot {chart}"
    assert attention.main(options.split()) == 0, capsys.readouterr().err
    result, out = json.loads(path.read_text()), capsys.readouterr().out
    assert len(result["cases"]) == 1 + 3
    for entry in result["cases"]:
        gather, online = (entry["paths"][name] for name in ("xla-gather", "xla-online"))
        for timed in (gather, online):
            assert timed["status"] == "timed" and timed["difference"] < 1e-2
            assert timed["min_s"] <= timed["median_s"] <= timed["max_s"]
            rate = entry["bytes"] / timed["median_s"]
            assert timed["bytes_per_second"] == pytest.approx(rate)
            copied = result["device"]["copy_bytes_per_second"]
            assert timed["share_of_copy"] == pytest.approx(rate / copied)
        assert entry["paths"]["cudnn-dense"]["status"] == "skipped"
    assert result["interpreted"] == []
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path) not in path.read_text()
    assert out.count("cudnn-dense: skipped: needs a GPU") == 1
    assert "dispatched one by one" in out and "xla-online" in out


def test_cases_too_large_or_past_the_time_limit_are_skipped(monkeypatch, capsys):
    monkeypatch.setattr(attention_trial, "_memory", lambda where: 1)
    monkeypatch.setattr(attention.interpreted, "checks", lambda paths, kinds: [])
    assert attention.main(f"{TINY} --kinds prefill".split()) == 0
    assert capsys.readouterr().out.count("GiB with its copies, but 0.0 GiB are available") == 3
    assert attention.main(f"{TINY} --kinds prefill --seconds -1".split()) == 0
    assert capsys.readouterr().out.count("not run: past --seconds -1") == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [("--tune", "--tune measures kernels on a GPU, and there is none"),
     ("--shapes gpt-2", "--shapes 'gpt-2' is unknown; supported: llama-3-8b"),
     ("--dtypes fp4", "--dtypes 'fp4' is unknown"), ("--batches 0", "--batches must be at least 1"),
     ("--repeats 0", "--repeats must be at least 1"),
     ("--json MISSING/x.json", "there is no folder for MISSING")],
)  # fmt: skip
def test_invalid_options_end_in_one_line(options, message, capsys):
    assert attention.main(options.split()) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {message}") and said.count("\n") == 1


def test_it_runs_where_pagedjax_cannot_be_imported():
    """On a machine with jax and numpy only."""
    blocked = ("flax", "optax", "orbax", "transformers", "gguf", "safetensors", "tokenizers")
    code = f"""
import sys
sys.modules.update(dict.fromkeys({blocked}))
from bench.attention import command as attention
sys.exit(attention.main(["--tune"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == "error: --tune measures kernels on a GPU, and there is none\n"
