"""The scaling benchmark: its rates, the timer of schedules, its tables, and a small run."""

import json

import pytest

from bench import scaling
from bench.report import line_chart
from bench.serving import scaling_report
from bench.serving.schedule_timer import ScheduleTimer, by_waiting
from tests.support.tiny_models import write_hf_folder


def test_decoding_rate_counts_tokens_after_every_first_token():
    """Two requests of three tokens: the second has its first token at 2 s; three more take 2 s."""
    found = scaling.rates([1.0, 2.0, 2.0, 3.0, 3.0, 4.0], 2.0, 14)
    assert found == {
        "seconds": 4.0, "output_per_second": 1.5, "all_per_second": 5.0,
        "decoding_per_second": 1.5,
    }  # fmt: skip
    assert scaling.rates([1.0, 1.0], 1.0, 3)["decoding_per_second"] is None


def test_schedules_are_grouped_by_powers_of_two():
    samples = [(0, 1.0), (1, 2.0), (2, 3.0), (3, 5.0), (4, 7.0), (100, 9.0)]
    assert by_waiting(samples) == [
        {"waiting": 0, "median_ms": 1.0, "max_ms": 1.0, "steps": 1},
        {"waiting": 1, "median_ms": 2.0, "max_ms": 2.0, "steps": 1},
        {"waiting": 2.5, "median_ms": 4.0, "max_ms": 5.0, "steps": 2},
        {"waiting": 4, "median_ms": 7.0, "max_ms": 7.0, "steps": 1},
        {"waiting": 100, "median_ms": 9.0, "max_ms": 9.0, "steps": 1},
    ]


class FakeScheduler:
    num_waiting = 5

    def schedule(self):
        return "plan"


class FakeEngine:
    def __init__(self):
        self.scheduler = FakeScheduler()


def test_timer_restores_the_scheduler():
    engine = FakeEngine()
    with ScheduleTimer(engine) as timer:
        assert engine.scheduler.schedule() == "plan"
    engine.scheduler.schedule()
    assert [waiting for waiting, _ in timer.samples] == [5]
    assert vars(engine.scheduler) == {}


def test_a_small_run(tmp_path, capsys):
    """End to end on a tiny model: of six requests four wait, and two fill a context of 32."""
    write_hf_folder("base", tmp_path / "tiny")
    status = scaling.main(
        ["--model", str(tmp_path / "tiny"), "--dtype", "float32", "--requests", "2", "6",
         "--contexts", "32", "--prompt-tokens", "8", "--output-tokens", "4", "--rows", "2",
         "--max-num-seqs", "2", "--max-num-batched-tokens", "32",
         "--json", str(tmp_path / "out.json")]
    )  # fmt: skip
    printed = capsys.readouterr()
    assert status == 0, printed.err
    result = json.loads((tmp_path / "out.json").read_text())
    assert [(each["size"], each["requests"], each["tokens_each"]) for each in result["requests"]] \
        == [(2, 2, 12), (6, 6, 12)]  # fmt: skip
    assert result["contexts"][0]["tokens_each"] == 32
    for each in result["requests"] + result["contexts"]:
        repeat = each["repeats"][0]
        assert repeat["generated_tokens"] == 4 * each["requests"]
        assert (repeat["compilations"], repeat["preemptions"]) == (0, 0)
        assert each["rates"]["all_per_second"] > each["rates"]["output_per_second"] > 0
    assert "decoding_per_second" in result["contexts"][0]["rates"]
    assert result["schedule"][-1]["waiting"] >= 4
    assert "6 of 12" in printed.out and "WARNING" not in printed.out
    panels = scaling_report.panels(result)
    assert [panel.lines["output"][0] for panel in panels[:2]] == [[2, 6], [32]]


def test_panels_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    panels = [
        line_chart.Panel("x", "y", {"a": ([64, 256], [1, 2])}, log=True),
        line_chart.Panel("x", "share", {"a": line_chart.shares([1, 3]), "b": ([1], [1])}),
    ]
    line_chart.draw(panels, "title", tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "options, message",
    [
        ("--model MISSING", "error: there is no model at MISSING"),
        ("--model . --requests 4 0", "error: --requests must be at least 1"),
        ("--model . --contexts 16", "error: --contexts must exceed --output-tokens 16"),
        ("--model . --rows 0", "error: --rows must be at least 1"),
    ],
)
def test_invalid_options_end_in_one_line(options, message, capsys):
    assert scaling.main(options.split()) == 1
    said = capsys.readouterr().err
    assert said.startswith(message) and said.count("\n") == 1
