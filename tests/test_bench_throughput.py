"""The throughput benchmark: its requests, its accounting, its report, and a small run of it all."""

import json
import random
import sys

import pytest

from bench import bar_chart, report, throughput, trial
from bench.own_engine import blocks_without_preemption
from bench.peer import Peer
from bench.trial import Trial
from bench.workload import Workload, make_workload
from tests.tiny_models import write_hf_folder


def test_workload_is_the_measured_one():
    """The numbers that earlier measurements were made with."""
    workload = make_workload()
    assert (workload.num_prompt_tokens, workload.num_output_tokens) == (9137, 9579)
    rng = random.Random(0)
    first = [rng.randrange(3, 49000) for _ in range(rng.randint(16, 256))]
    assert workload.prompts[0] == first
    assert len(workload.prompts) == len(workload.output_lens) == 64


def test_workload_keeps_to_the_vocabulary():
    workload = make_workload(6, first_id=3, end_id=128)
    assert all(3 <= token < 128 for prompt in workload.prompts for token in prompt)
    with pytest.raises(ValueError, match="end_id 3"):
        make_workload(6, end_id=3)
    with pytest.raises(ValueError, match="num_requests is 0"):
        make_workload(0)


class FakeEngine:
    """Counts one second a step: as many steps as the longest output of a call."""

    def __init__(self):
        self.now = 0.0
        self.calls = []

    def clock(self):
        return self.now

    def generate(self, prompts, lengths):
        self.calls.append((len(prompts), list(lengths)))
        self.now += max(lengths)
        return [[prompt[0]] * length for prompt, length in zip(prompts, lengths, strict=True)]


WORKLOAD = Workload(([10], [11], [12], [13], [14]), (3, 7, 2, 2, 5))


def test_static_batches_wait_for_their_longest():
    """Two rows a batch: 7 + 2 + 5 seconds for the 19 tokens that were asked for."""
    engine = FakeEngine()
    done = trial.static(WORKLOAD, 2, engine.generate, engine.clock)
    assert engine.calls == [(2, [7, 7]), (2, [2, 2]), (1, [5])]
    assert done.seconds == 14
    assert [len(ids) for ids in done.outputs] == [3, 7, 2, 2, 5]
    assert [ids[0] for ids in done.outputs] == [10, 11, 12, 13, 14]
    assert done.tokens_per_second == pytest.approx(19 / 14)


def test_continuous_adds_all_at_once():
    engine = FakeEngine()
    done = trial.continuous(WORKLOAD, engine.generate, engine.clock)
    assert engine.calls == [(5, [3, 7, 2, 2, 5])]
    assert done.tokens_per_second == pytest.approx(19 / 7)


def test_missing_tokens_are_refused():
    with pytest.raises(ValueError, match="request 1 was given 6 tokens instead of 7"):
        trial.continuous(WORKLOAD, lambda _, lens: [[0] * min(length, 6) for length in lens])


def test_agreement_stops_at_the_first_difference():
    ours = [[1, 2, 3, 4], [5, 6], [7]]
    theirs = [[1, 2, 9, 4], [5, 6], [8]]
    assert trial.agreement(ours, theirs) == {
        "ids": 4, "of_ids": 7, "requests": 1, "of_requests": 3,
    }  # fmt: skip


def test_pool_holds_the_longest_that_run_together():
    """Two of five run at once, 1 + 7 tokens each: one block each, and a spare one."""
    assert blocks_without_preemption(WORKLOAD, 2) == 3


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
        "agreement": {"ids": 90, "of_ids": 100, "requests": 0, "of_requests": 1},
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
    assert not any("WARNING" in line for line in lines)


def test_compilations_while_the_clock_ran_are_loud():
    assert "WARNING: 6 PROGRAM(S)" in report.lines(made_up_result(compilations=2))[-1]


def test_a_small_run(tmp_path, capsys):
    """End to end on a tiny model, by both ways of batching, in one command."""
    write_hf_folder("base", tmp_path / "tiny")
    options = "--dtype float32 --num-requests 6 --repeats 1 --static --batch 2 --max-num-seqs 2"
    status = throughput.main(
        ["--model", str(tmp_path / "tiny"), *options.split(), "--max-num-batched-tokens", "32",
         "--json", str(tmp_path / "out.json")]
    )  # fmt: skip
    printed = capsys.readouterr()
    assert status == 0, printed.err
    result = json.loads((tmp_path / "out.json").read_text())
    wanted = make_workload(6, end_id=128)
    assert result["workload"]["output_tokens"] == wanted.num_output_tokens
    assert result["parameters"]["model"] == "tiny"
    assert str(tmp_path) not in json.dumps(result)
    assert result["header"]["jax"] and result["header"]["date"]
    continuous, static = (each["repeats"][0] for each in result["engines"])
    assert continuous["generated_tokens"] == wanted.num_output_tokens
    assert static["generated_tokens"] == sum(
        max(part.output_lens) * len(part.prompts) for part in wanted.batches(2)
    )
    for repeat in (continuous, static):
        assert (repeat["preemptions"], repeat["compilations"]) == (0, 0)
        assert 0 < repeat["mean_kv_utilization"] <= 1
    assert "pagedjax, static batches of 2" in printed.out
    assert "repeat 1 of 1" in printed.err


@pytest.mark.parametrize(
    "options, message",
    [
        ("--model MISSING", "error: there is no model at MISSING"),
        ("--model . --repeats 0", "error: --repeats must be at least 1"),
        ("--model . --static --batch 9 --max-num-seqs 8", "error: a static batch of 9 cannot"),
        ("--model . --json MISSING/x.json", "error: there is no folder for MISSING"),
        ("--model . --peer MISSING/python", "error: the peer's interpreter MISSING/python"),
        (f"--model . --peer {sys.executable}", "error: the peer reads .gguf files alone"),
    ],
)
def test_mistakes_end_in_one_line(options, message, capsys):
    assert throughput.main(options.split()) == 1
    said = capsys.readouterr().err
    assert said.startswith(message) and said.count("\n") == 1


def test_a_peer_that_fails_says_why(tmp_path):
    """There is no such model, and where torch is missing the script ends before it looks."""
    model = tmp_path / "m.gguf"
    with pytest.raises(ValueError, match="the peer ended with status 1: "):
        Peer(sys.executable, model, "float32", 2).run(WORKLOAD)


def test_chart_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    spreads = {"ours": {"median": 3.0, "min": 2.0, "max": 4.0}}
    bar_chart.draw(spreads, "tokens/s", "title", tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_no_matplotlib_is_one_clear_error(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert throughput.main(["--model", ".", "--plot", "chart.png"]) == 1
    assert capsys.readouterr().err.startswith("error: a plot needs matplotlib")
