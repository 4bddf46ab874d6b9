"""`python -m pagedjax`: answers, one-line errors, and the quickstart example."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pagedjax.__main__ import _cache_folder, main

ROOT = Path(__file__).parents[1]
SMALL = ["--num-blocks", "32", "--max-model-len", "256", "--compilation-cache", "none"]


def test_json_and_stats(smollm2_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "generate",
        "--model",
        str(smollm2_gguf),
        "--prompt",
        "What is the capital of France?",
    ]
    assert main([*command, "--chat", "--temperature", "0", "--json", "--stats", *SMALL]) == 0
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert answer["text"] == "The capital of France is Paris."
    assert answer["finish_reason"] == "stop"
    stats = json.loads(captured.err.splitlines()[-1])
    assert stats["generated_tokens"] == len(answer["token_ids"])
    assert 0 <= stats["padding_waste"] < 1 and 0 <= stats["overlap"] <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "nan"], "temperature=nan"),
        (["--temperature", "-1"], "temperature=-1.0"),
        (["--top-p", "0"], "top_p=0.0"),
        (["--max-tokens", "0"], "max_tokens=0"),
        (["--seed", "4294967296"], "seed=4294967296"),
        (["--attention", "fast"], "attention='fast' is unknown; supported: 'auto', 'xla'"),
        (["--dtype", "int3"], "dtype='int3'"),
        ([], "no/such/folder"),
    ],
)
def test_invalid_arguments_give_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["generate", "--model", "no/such/folder", "--prompt", "x", *arguments]
    assert main(command) == 1
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1


def test_an_empty_prompt_gives_one_line(
    smollm2_gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--model", str(smollm2_gguf), "--prompt", "", *SMALL]) == 1
    assert capsys.readouterr().err.strip().splitlines()[-1].endswith("at least one token")


def test_a_process_ends_with_a_status_and_no_traceback() -> None:
    command = [sys.executable, "-m", "pagedjax", "generate", "--model", "nowhere", "--prompt", "x"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "nowhere" in done.stderr


def test_the_quickstart_runs(smollm2_gguf: Path) -> None:
    command = [sys.executable, "examples/quickstart.py", str(smollm2_gguf)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 3
    assert lines[2] == "'The capital of France is Paris.' stop"


def test_compiled_programs_are_kept_in_the_users_cache_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _cache_folder(None) == str(tmp_path / "pagedjax")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert _cache_folder(None) == str(tmp_path / ".cache" / "pagedjax")
    assert _cache_folder("mine") == "mine"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _cache_folder("~/mine") == str(tmp_path / "mine")
    assert _cache_folder("none") is None
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    assert _cache_folder(None) is None, "JAX already has a cache folder"
