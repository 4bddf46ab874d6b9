"""The throughput benchmark: its requests, its accounting, its report, and a small run of it all."""

import argparse
import dataclasses
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import throughput
from bench.peers import peer_script
from bench.peers.peer import Peer
from bench.report import bar_chart, command_line, header, report
from bench.serving import trial
from bench.serving.own_engine import blocks_without_preemption, stats_between
from bench.serving.trial import Trial
from bench.serving.workload import Workload, make_even_workload, make_workload
from pagedjax.outputs import EngineStats
from tests.support.fake_peer import FAKE_PEER
from tests.support.tiny_models import write_hf_folder


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


def test_even_workload_has_one_size():
    workload = make_even_workload(3, 5, 2, end_id=128)
    assert [len(prompt) for prompt in workload.prompts] == [5] * 3
    assert workload.output_lens == (2, 2, 2)
    assert workload.first(9) == Workload(workload.prompts[:1], (9,))


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


def test_compilations_while_the_clock_ran_are_loud():
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
    """Statistics in which all else is 0."""
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


def test_a_small_run(tmp_path, capsys):
    """End to end on a tiny model, by both ways of batching, in one command."""
    write_hf_folder("base", tmp_path / "tiny")
    options = "--dtype float32 --num-requests 6 --repeats 1 --static --batch 2 --max-num-seqs 2"
    options += " --single"
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
    assert set(result["header"]["instructions"]) <= set(header.INSTRUCTIONS)
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
    assert result["single"]["engines"][0]["repeats"][0]["generated_tokens"] == 128
    # A run finds nothing of the same prompts' keys that the runs before it have left.
    alone = result["single"]["engines"][0]["repeats"][0]
    assert {each["prefix_hit_tokens"] for each in (continuous, static, alone)} == {0}


@pytest.fixture
def fake_peer(tmp_path, monkeypatch):
    """Scripts that answer as the peers do, under their names; this interpreter runs them."""
    for name in ("hf_static.py", "hf_continuous.py", "vllm_offline.py"):
        (tmp_path / name).write_text(FAKE_PEER)
    monkeypatch.setattr(peer_script, "FOLDER", tmp_path)
    return tmp_path / "m.gguf"


class OwnEngine:
    """Stands in for ours: every output is zeros."""

    num_blocks = 7

    def __init__(self, model, options, num_requests):
        self.workload = make_workload(num_requests)

    def warm_up(self):
        return {"seconds": 1.0, "programs": 1}

    def continuous(self, workload):
        return Trial(1.0, [[0] * length for length in workload.output_lens], {})


def test_all_peers_take_turns_in_one_run(fake_peer, monkeypatch, tmp_path, capsys):
    fake_peer.touch()
    monkeypatch.setattr(throughput, "OwnEngine", OwnEngine)
    status = throughput.main(
        ["--model", str(fake_peer), "--peer", sys.executable, "--peers", "hf_static",
         "hf_continuous", "vllm", "--num-requests", "3", "--repeats", "2", "--batch", "2",
         "--single", "--json", str(tmp_path / "out.json")]
    )  # fmt: skip
    printed = capsys.readouterr()
    assert status == 0, printed.err
    result = json.loads((tmp_path / "out.json").read_text())
    peers = ["transformers, static batches of 2", "transformers, continuous", "vLLM, continuous"]
    assert [each["name"] for each in result["engines"][1:]] == peers
    assert [each["name"] for each in result["single"]["engines"][1:]] == peers
    told = [line.split(": ")[1] for line in printed.err.splitlines()]
    names = ["pagedjax, continuous", *peers]
    assert told == 2 * [*names, *(f"{name}, one request alone" for name in names)]
    # A fake says how often it was asked and with which rows: it is one process for all repeats.
    for each, rows in zip(result["engines"][1:], ("2", "64", "64"), strict=True):
        assert [repeat["seconds"] for repeat in each["repeats"]] == [1.0, 3.0]
        assert each["repeats"][0]["rows"] == rows
    same = result["agreement"][peers[0]]
    assert same["ids"] == same["of_ids"] and list(result["agreement"]) == peers


SLEEPER = """\
import sys
import time

sys.path.insert(0, {folder!r})
from exchange import answer_tasks


def answer(task):
    print("said by a library")
    time.sleep(task["seconds"])
    return task


try:
    answer_tasks(lambda: (answer, {{"torch": "2"}}))
finally:
    print("cleaned up", file=sys.stderr, flush=True)
"""


def test_peers_exchange_lines_until_nobody_asks(tmp_path):
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER.format(folder=str(peer_script.FOLDER)))
    with peer_script.Living([sys.executable, str(script)]) as peer:
        assert peer.made_with == {"torch": "2"}
        assert [peer.ask({"seconds": each}) for each in (0, 0.01)] == [
            {"seconds": 0}, {"seconds": 0.01},
        ]  # fmt: skip


@pytest.mark.parametrize("begun_with", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_peer_stops_working_when_its_asker_is_gone(tmp_path, begun_with):
    """Also where the asker is a background job, whose children begin with SIGINT ignored."""
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER.format(folder=str(peer_script.FOLDER)))
    before = signal.signal(signal.SIGINT, begun_with)
    try:
        process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            assert json.loads(process.stdout.readline()) == {"torch": "2"}
            process.stdin.write('{"seconds": 600}\n')
            process.stdin.flush()
            assert process.stderr.readline() == "said by a library\n"
            time.sleep(0.5)  # by now it waits in a system call, which only a signal ends
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert "cleaned up" in said


def test_a_peer_that_fails_later_says_why(fake_peer):
    with Peer("vllm", sys.executable, fake_peer, "float32", 2) as peer:
        with pytest.raises(ValueError, match="the peer ended with status 3: no more"):
            peer.run(Workload(([13],), (1,)))
    with pytest.raises(ValueError, match="'sglang' is unknown; supported: hf_static, hf_cont"):
        Peer("sglang", sys.executable, fake_peer, "float32", 2)


@pytest.mark.parametrize(
    "options, message",
    [
        ("--model MISSING", "error: there is no model at MISSING"),
        ("--model . --repeats 0", "error: --repeats must be at least 1"),
        ("--model . --static --batch 9 --max-num-seqs 8", "error: a static batch of 9 cannot"),
        ("--model . --num-blocks 0", "error: --num-blocks must be at least 1"),
        ("--model . --json .", "error: . is a folder; name a file"),
        ("--model . --json MISSING/x.json", "error: there is no folder for MISSING"),
        ("--model . --peer MISSING/python", "error: the peer's interpreter MISSING/python"),
        ("--model . --peers vllm", "error: --peers needs --peer"),
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
        Peer("hf_static", sys.executable, model, "float32", 2)


def test_chart_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    spreads = {"ours": {"median": 3.0, "min": 2.0, "max": 4.0}}
    bar_chart.draw(spreads, "tokens/s", "title", tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    bar_chart.check(tmp_path / "chart.PDF")
    with pytest.raises(ValueError, match=r"cannot draw \S*song.mp3; its name must end in one of: "):
        bar_chart.check(tmp_path / "song.mp3")


def test_no_matplotlib_is_one_clear_error(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert throughput.main(["--model", ".", "--plot", "chart.png"]) == 1
    assert capsys.readouterr().err.startswith("error: a plot needs matplotlib")


def test_the_model_that_is_taken_when_none_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, smollm2_gguf: Path
) -> None:
    parser = argparse.ArgumentParser()
    command_line.add_model(parser)
    options = parser.parse_args([])
    assert options.model == smollm2_gguf
    command_line.check(options, ())
    monkeypatch.setattr(command_line, "MODEL", tmp_path / "none.gguf")
    options.model = command_line.MODEL
    with pytest.raises(ValueError, match="there is no model at .*none.gguf; fetch it with `make"):
        command_line.check(options, ())
