"""The report of the throughput benchmark: rates, ratios, statistics, and its chart."""

import dataclasses

import pytest

from bench.report import bar_chart, report
from bench.serving.own_engine import stats_between
from bench.serving.trial import Trial
from pagedjax.outputs import EngineStats


def made_up_result(compilations=0):
    details = {
        "steps": 300, "mean_kv_utilization": 0.93, "preemptions": 0, "compilations": compilations,
    }  # fmt: skip
    ours = [Trial(seconds, [[1] * 100], details) for seconds in (0.5, 0.4, 0.2)]
    theirs = [Trial(seconds, [[1] * 100], {"torch": "2"}) for seconds in (1.0, 2.0, 1.0)]
    engines = [report.engine_entry("ours", ours), report.engine_entry("peer", theirs)]
    return {
        "parameters": {"model": "m.gguf", "dtype": "bfloat16"},
        "workload": {"requests": 1, "prompt_tokens": 1000, "output_tokens": 100},
        "warmup": {"seconds": 12.5, "programs": 7},
        "engines": engines,
        "ratios": report.ratios(engines),
        "single": None,
        "agreement": {
            "peer": {"ids": 90, "of_ids": 100, "requests": 0, "of_requests": 1},
        },
    }


def test_report_of_made_up_trials():
    result = made_up_result()
    ours = result["engines"][0]
    assert ours["tokens_per_second"] == {"median": 250.0, "min": 200.0, "max": 500.0}
    assert [repeat["tokens_per_second"] for repeat in ours["repeats"]] == [200, 250, 500]
    assert result["ratios"] == {"peer": 2.5}
    lines = report.lines(result)
    table = [line.split() for line in lines if line.startswith(("ours  ", "peer  "))]
    assert table == [
        ["ours", "250.0", "200.0", "-", "500.0", "0.40", "300", "93.0%", "0", "0"],
        ["peer", "100.0", "50.0", "-", "100.0", "1.00"],
    ]
    assert "ours over peer: 2.50 x" in lines
    assert "warmup, not counted: 7 programs in 12.5 s" in lines
    assert lines[-1].startswith("greedy ids equal to those of peer up to the first difference: 90")


def test_compilations_in_timed_runs_give_a_warning():
    assert "WARNING: 6 PROGRAM(S)" in report.lines(made_up_result(compilations=2))[-1]


def test_report_of_one_request_alone():
    ours = [Trial(seconds, [[1] * 100], {"compilations": 1}) for seconds in (1.0, 2.0, 4.0)]
    alone = [report.single_entry("ours", ours), report.single_entry("peer", ours[2:])]
    result = made_up_result() | {"single": {"engines": alone, "ratios": report.ratios(alone)}}
    lines = report.lines(result)
    assert ["ours", "20.0", "10.0", "-", "40.0", "50.0"] in [line.split() for line in lines]
    assert lines[-2] == "ours over peer, alone: 2.00 x"
    assert "WARNING: 4 PROGRAM(S)" in lines[-1]


def stats(**known):
    """Statistics with these values and 0 elsewhere."""
    return EngineStats(**{each.name: 0 for each in dataclasses.fields(EngineStats)} | known)


def test_differences_of_statistics():
    found = stats_between(
        stats(steps=10, mean_kv_utilization=0.5, num_preemptions=1),
        stats(steps=30, mean_kv_utilization=0.7, num_preemptions=4),
    )
    assert (found["steps"], found["preemptions"], found["mean_kv_utilization"]) == (20, 3, 0.8)
    assert "padding_waste" not in found  # nothing was computed
    found = stats_between(
        stats(computed_tokens=10, padded_tokens=20, host_s=1.0, elapsed_s=2.0, exposed_s=0.5),
        stats(computed_tokens=70, padded_tokens=100, host_s=1.5, elapsed_s=4.0, exposed_s=0.75),
    )
    assert (found["computed_tokens"], found["padded_tokens"]) == (60, 80)
    assert (found["padding_waste"], found["host_seconds"]) == (0.25, 0.5)
    assert found["device_seconds"] == 1.75
    assert "num_waiting" not in found


def test_chart_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    spreads = {"ours": {"median": 3.0, "min": 2.0, "max": 4.0}}
    bar_chart.draw(spreads, "tokens/s", "title", tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    bar_chart.check(tmp_path / "chart.PDF")
    with pytest.raises(ValueError, match=r"cannot draw \S*song.mp3; its name must end in one of: "):
        bar_chart.check(tmp_path / "song.mp3")
