"""Options that the benchmark commands share."""

import argparse
from pathlib import Path

import pytest

from bench.report import command_line


def test_default_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, smollm2_gguf: Path) -> None:
    parser = argparse.ArgumentParser()
    command_line.add_model(parser)
    options = parser.parse_args([])
    assert options.model == smollm2_gguf
    command_line.check(options, ())
    monkeypatch.setattr(command_line, "MODEL", tmp_path / "none.gguf")
    options.model = command_line.MODEL
    with pytest.raises(ValueError, match="there is no model at .*none.gguf; fetch it with `make"):
        command_line.check(options, ())
