"""The latency benchmark: arrivals, the loop that serves them, its report, and a small run."""

import json
import sys
from types import SimpleNamespace

import pytest

from bench import latency
from bench.peers import peer_script
from bench.peers.peer import Peer
from bench.serving import cold_start, latency_report, open_loop
from bench.serving.arrivals import poisson
from bench.serving.latency_report import IDLE, Condition
from bench.serving.served import (
    Served,
    between_tokens_ms,
    per_token_ms,
    quantiles,
    tokens_per_second,
)
from bench.serving.workload import Workload
from tests.support.fake_peer import write_fake_peers
from tests.support.tiny_models import write_hf_folder


def test_arrivals_are_the_same_draws_at_every_rate():
    slow, fast = poisson(2.0, 2000), poisson(4.0, 2000)
    assert slow == sorted(slow) and slow[0] > 0
    assert slow[-1] == pytest.approx(1000, rel=0.1)
    assert fast == pytest.approx([second / 2 for second in slow])
    with pytest.raises(ValueError, match="the rate is 0, but must be above 0"):
        poisson(0, 3)


class FakeEngine:
    """A step takes a second and gives every running request a token. The first token comes in the
    second step after the request was added, as with one step in flight.
    """

    def __init__(self):
        self.now, self.slept, self.live = 0.0, [], {}

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def reset_prefix_cache(self):
        assert not self.live

    def add_request(self, name, prompt, params):
        self.live[name] = [-1, params.max_tokens]

    def has_unfinished_requests(self):
        return bool(self.live)

    def step(self):
        self.now += 1.0
        outputs = []
        for name, state in list(self.live.items()):
            state[0] += 1
            if state[0]:
                completion = SimpleNamespace(token_ids=[0] * state[0])
                outputs.append(SimpleNamespace(request_id=name, outputs=[completion]))
            if state[0] == state[1]:
                del self.live[name]
        return outputs


def test_requests_are_added_at_their_arrival_time():
    """The second arrives during a step and is added after it; before the third the loop sleeps."""
    engine = FakeEngine()
    workload = Workload(([1], [2], [3]), (2, 3, 1))
    served = open_loop.serve(engine, workload, [0.5, 1.75, 20.0], engine.clock, engine.sleep)
    assert served == [
        Served(0.5, (2.5, 3.5), 2), Served(1.75, (4.5, 5.5, 6.5), 3), Served(20.0, (22.0,), 1),
    ]  # fmt: skip
    assert engine.slept == [0.5, 13.5]


def test_times_of_requests():
    served = [Served(1.0, (1.5, 3.0, 3.5), 5), Served(2.0, (2.25,), 1)]
    assert served[0].first_token_s == 0.5
    assert per_token_ms(served) == [500.0]  # a single token has no time per token
    assert between_tokens_ms(served) == [500.0, 1500.0]  # several tokens may come at once
    assert tokens_per_second(served) == pytest.approx(6 / 2.5)
    assert quantiles(list(range(101))) == {"median": 50, "p90": 90, "p99": 99, "max": 100}


def measured():
    """Two engines with mean times per token of 10 and 20 ms when idle, 15 and 80 ms under load;
    under load, three waits are half of the mean and one is long.
    """
    loaded = Condition("70% of saturation", 2.0, 0.7)

    def served(ms, condition):
        waits = [ms] * 4 if condition.rate is None else [ms / 2] * 3 + [ms * 2.5]
        return Served(0.0, tuple(0.25 + sum(waits[:count]) / 1e3 for count in range(5)), 5)

    return {
        (name, condition): [[served(ms, condition)]] * 2
        for name, condition, ms in [
            ("ours", Condition(IDLE), 10), ("theirs", Condition(IDLE), 20),
            ("ours", loaded, 15), ("theirs", loaded, 80),
        ]
    }  # fmt: skip


def test_report_of_made_up_requests():
    result = {
        "parameters": {"model": "m", "dtype": "float32", "num_requests": 1, "repeats": 2},
        "saturation": {"requests_per_second": 3.0, "tokens_per_second": 450.0},
        "compilations": 0,
        "engines": latency_report.entries(measured()),
    }
    assert [each["over_idle"] for each in result["engines"]] == [1.0, 1.0, 1.5, 4.0]
    assert [each["between_over_idle"] for each in result["engines"]] == [1.0, 1.0, 0.75, 2.0]
    assert {each["requests"] for each in result["engines"]} == {2}
    lines = latency_report.lines(result)
    table = [line.split("saturation")[1].split() for line in lines if line.startswith("ours, 70%")]
    assert table[0] == [
        "2.00", "16.1", "0.250", "0.250", "15.0", "15.0", "1.50", "x", "7.5", "37.5", "0.75", "x",
    ]  # fmt: skip
    assert lines[-2] == (
        "ours, 70% of saturation: median time per token 1.50 x that of the idle engine, "
        "median time between two tokens 0.75 x; p99 to the first token 0.250 s"
    )
    assert "WARNING: 2 PROGRAM(S)" in latency_report.lines(result | {"compilations": 2})[-1]


def test_distributions_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    latency_report.draw(measured(), "title", tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_a_small_run_beside_a_peer(tmp_path, monkeypatch, capsys):
    """End to end on a tiny model, with a fake of the script that runs vLLM."""
    write_hf_folder("base", tmp_path / "tiny")
    write_fake_peers(tmp_path, monkeypatch, "vllm_online.py")
    monkeypatch.setattr(peer_script, "check", lambda *_: None)  # it reads no model
    status = latency.main(
        ["--model", str(tmp_path / "tiny"), "--dtype", "float32", "--peer", sys.executable,
         "--load", "0.5", "--rates", "20", "--num-requests", "4", "--idle-requests", "2",
         "--repeats", "1", "--max-num-seqs", "2", "--max-num-batched-tokens", "32",
         "--json", str(tmp_path / "out.json")]
    )  # fmt: skip
    printed = capsys.readouterr()
    assert status == 0, printed.err
    result = json.loads((tmp_path / "out.json").read_text())
    assert str(tmp_path) not in json.dumps(result)
    assert (result["compilations"], result["peer"]["torch"]) == (0, "2")
    ours, theirs = (
        [each for each in result["engines"] if each["name"] == name]
        for name in ("pagedjax", "vLLM")
    )
    assert [each["load"] for each in ours] == [None, 0.5, None]
    assert [each["requests"] for each in ours] == [2, 4, 4]
    saturation = result["saturation"]["requests_per_second"]
    assert ours[1]["rate"] == theirs[1]["rate"] == pytest.approx(saturation / 2, abs=1e-3)
    for each in ours:
        assert 0 < each["first_token_s"]["median"] < 10 and each["per_token_ms"]["median"] > 0
    for each in theirs:
        assert each["first_token_s"]["max"] == 0.5 and each["per_token_ms"]["p99"] == 1000
    assert "pagedjax, 20 a second" in printed.out


def test_a_peer_serves_over_time(tmp_path, monkeypatch):
    write_fake_peers(tmp_path, monkeypatch, "vllm_online.py")
    with Peer("vllm_online", sys.executable, tmp_path / "m.gguf", "float32", 2) as peer:
        times = peer.serve(Workload(([1], [2]), (3, 2)), [0.0, 4.0])
    assert times == [[[0.5, 1.5, 2.5], 3], [[4.5, 5.5], 2]]


def test_starts_are_timed_until_the_first_byte(tmp_path):
    said = "import sys, time; time.sleep(0.2); print(1, flush=True); time.sleep(0.3)"
    start = cold_start.run([sys.executable, "-c", said], {})
    assert start.first_s >= 0.2 and start.end_s >= start.first_s + 0.3
    with pytest.raises(ValueError, match="ended with status 1: SystemExit|status 1: no model"):
        cold_start.run([sys.executable, "-c", "import sys; sys.exit('no model')"], {})


def test_cold_starts_with_and_without_a_cache(tmp_path, monkeypatch, capsys):
    """The cache is filled before timing, and the starts without a cache do not use it."""
    (tmp_path / "m.gguf").touch()
    seen = []

    def run(command, environment):
        cache = "--compilation-cache" in command and "none" not in command
        seen.append((command[1].rpartition("/")[2], cache))
        return cold_start.Start(1.0 if cache else 2.0, 3.0)

    monkeypatch.setattr(cold_start, "run", run)
    status = latency.main(
        ["--model", str(tmp_path / "m.gguf"), "--peer", sys.executable, "--cold",
         "--repeats", "1", "--json", str(tmp_path / "out.json")]
    )  # fmt: skip
    assert status == 0, capsys.readouterr().err
    assert seen == [("-m", True), ("-m", False), ("-m", True), ("hf_cold.py", False)]
    result = json.loads((tmp_path / "out.json").read_text())
    assert {each["name"]: each["first_s"]["median"] for each in result["cold"]} == {
        cold_start.PLAIN: 2.0, cold_start.CACHED: 1.0, cold_start.PEER: 2.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "options, message",
    [
        ("--model MISSING", "error: there is no model at MISSING"),
        ("--model . --idle-requests 0", "error: --idle-requests must be at least 1"),
        ("--model . --rates 1 0", "error: --rates must be above 0"),
        ("--model . --load -1", "error: --load must be above 0"),
        ("--model . --cold --plot x.png", "error: --plot cannot be used with --cold"),
        ("--model . --cold --load 0.5", "error: --load cannot be used with --cold"),
        ("--model . --cold --max-num-seqs 8", "error: --max-num-seqs cannot be used"),
        ("--model . --rates nan", "error: --rates must be above 0"),
        ("--model . --load 0.5 0.5", "error: --load has a duplicate value"),
        ("--model . --json .", "error: . is a folder; name a file"),
        (f"--model . --peer {sys.executable}", "error: the peer reads only .gguf files"),
    ],
)
def test_invalid_options_end_in_one_line(options, message, capsys):
    assert latency.main(options.split()) == 1
    said = capsys.readouterr().err
    assert said.startswith(message) and said.count("\n") == 1
