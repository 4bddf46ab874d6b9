"""The throughput benchmark's command: a small run, a run with peers, and its errors."""

import json
import sys

import pytest

from bench import throughput
from bench.report import header
from bench.serving.trial import Trial
from bench.serving.workload import make_workload
from tests.support.fake_peer import write_fake_peers
from tests.support.tiny_models import write_hf_folder


def test_a_small_run(tmp_path, capsys):
    """End to end on a tiny model, with continuous and static batching in one command."""
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
    # No run hits the prefix cache of the previous runs, which have the same prompts.
    alone = result["single"]["engines"][0]["repeats"][0]
    assert {each["prefix_hit_tokens"] for each in (continuous, static, alone)} == {0}


class OwnEngine:
    """Replaces our engine; every output is zeros."""

    num_blocks = 7

    def __init__(self, model, options, num_requests):
        self.workload = make_workload(num_requests)

    def warm_up(self):
        return {"seconds": 1.0, "programs": 1}

    def continuous(self, workload):
        return Trial(1.0, [[0] * length for length in workload.output_lens], {})


def test_all_peers_take_turns_in_one_run(monkeypatch, tmp_path, capsys):
    """The fake peers run in the interpreter of the tests."""
    model = tmp_path / "m.gguf"
    model.touch()
    scripts = ("hf_static.py", "hf_continuous.py", "vllm_offline.py")
    write_fake_peers(tmp_path, monkeypatch, *scripts)
    monkeypatch.setattr(throughput, "OwnEngine", OwnEngine)
    status = throughput.main(
        ["--model", str(model), "--peer", sys.executable, "--peers", "hf_static",
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
    # A fake reports its task's number as seconds: one process runs all repeats.
    for each, rows in zip(result["engines"][1:], ("2", "64", "64"), strict=True):
        assert [repeat["seconds"] for repeat in each["repeats"]] == [1.0, 3.0]
        assert each["repeats"][0]["rows"] == rows
    same = result["agreement"][peers[0]]
    assert same["ids"] == same["of_ids"] and list(result["agreement"]) == peers


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
        (f"--model . --peer {sys.executable}", "error: the peer reads only .gguf files"),
    ],
)
def test_invalid_options_end_in_one_line(options, message, capsys):
    assert throughput.main(options.split()) == 1
    said = capsys.readouterr().err
    assert said.startswith(message) and said.count("\n") == 1


def test_no_matplotlib_is_one_clear_error(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert throughput.main(["--model", ".", "--plot", "chart.png"]) == 1
    assert capsys.readouterr().err.startswith("error: a plot needs matplotlib")
