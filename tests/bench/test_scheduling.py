"""The benchmark of the host's work, at a small size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import scheduling


def test_a_small_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scheduling, "SIZES", ((0, 60), (30, 90)))
    target = tmp_path / "result.json"
    assert scheduling.main(["--running", "3", "--json", str(target)]) == 0
    rows = json.loads(target.read_text())["rows"]
    assert [(each["waiting"], each["num_blocks"]) for each in rows] == [(0, 60), (30, 90)]
    for each in rows:
        assert 0 < each["min_ms"] <= each["median_ms"] <= each["max_ms"]
        assert each["pack_ms"] > 0
    assert capsys.readouterr().out.count("schedule and commit") == 2


def test_a_pool_too_small_for_the_running_requests_is_refused() -> None:
    """3 requests with 100 prompt tokens and 202 steps need 3 x 19 blocks of 16."""
    with pytest.raises(ValueError, match="preempted"):
        scheduling.measure(3, 0, 30)
