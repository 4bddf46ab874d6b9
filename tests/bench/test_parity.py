"""The parity benchmark: its arithmetic, its errors, and a small run."""

import json
import sys

import numpy as np
import pytest

from bench import parity
from bench.accuracy import parity_report
from bench.peers import peer_script
from tests.support.tiny_models import write_hf_folder


def test_distribution_of_made_up_differences():
    one = np.arange(101, dtype=np.float64).reshape(1, 101) / 100
    found = parity_report.entry("float32", "one - nothing", -one, np.zeros((1, 101)))
    assert found.pop("count") == 101
    assert (found.pop("dtype"), found.pop("pair")) == ("float32", "one - nothing")
    assert found == pytest.approx({"mean": 0.5, "p50": 0.5, "p99": 0.99, "max": 1.0})


def test_a_small_run(tmp_path, capsys):
    """End to end on a tiny model without a peer, in both dtypes; two rows keep compilations few."""
    write_hf_folder("base", tmp_path / "tiny")
    options = "--num-prompts 2 --tokens 3".split()
    status = parity.main(
        ["--model", str(tmp_path / "tiny"), *options, "--json", str(tmp_path / "out.json")]
    )
    printed = capsys.readouterr()
    assert status == 0, printed.err
    result = json.loads((tmp_path / "out.json").read_text())
    assert str(tmp_path) not in json.dumps(result)
    assert (result["model"], result["peer"]) == ("tiny", None)
    exact, rounded = result["pairs"]
    assert [each["dtype"] for each in (exact, rounded)] == ["float32", "bfloat16"]
    assert all(each["count"] == 6 and each["pair"] == parity.OURS for each in (exact, rounded))
    assert 0 <= exact["p50"] <= exact["p99"] <= exact["max"] < 1e-4
    assert rounded["max"] < 0.5
    assert "tiny: 2 prompts x 3 sampled tokens" in printed.out
    assert printed.out.count(parity.OURS) == 2


def test_the_peer_is_given_the_sampled_tokens(tmp_path, capsys, monkeypatch):
    """A fake replaces its process; its cached decode differs by 0.25 everywhere."""
    (tmp_path / "m.gguf").touch()
    outputs, logprobs = [[5, 6], [7, 8]], np.array([[-1.0, -2.0], [-3.0, -4.0]])
    monkeypatch.setattr(parity, "load_checkpoint", lambda *_: (FakeConfig, None, None))
    monkeypatch.setattr(parity, "_ours", lambda *_: (outputs, logprobs, logprobs + 0.125))

    def call(script, interpreter, gguf, dtype, given):
        assert (script, interpreter, gguf.name) == ("hf_parity.py", sys.executable, "m.gguf")
        assert (dtype, given["outputs"], len(given["prompts"])) == ("bfloat16", outputs, 2)
        return {"cached": (logprobs - 0.25).tolist(), "full": logprobs.tolist(), "torch": "2"}

    monkeypatch.setattr(peer_script, "call", call)
    status = parity.main(
        ["--model", str(tmp_path / "m.gguf"), "--peer", sys.executable, "--dtypes", "bfloat16",
         "--num-prompts", "2", "--tokens", "2", "--json", str(tmp_path / "out.json")]
    )  # fmt: skip
    assert status == 0, capsys.readouterr().err
    result = json.loads((tmp_path / "out.json").read_text())
    assert {each["pair"]: each["max"] for each in result["pairs"]} == {
        parity.OURS: 0.125, parity.THEIRS: 0.25, parity.BETWEEN: 0.125,
    }  # fmt: skip
    assert result["peer"] == {"torch": "2"}


class FakeConfig:
    vocab_size = 128


@pytest.mark.parametrize(
    "options, message",
    [
        ("--model MISSING", "error: there is no model at MISSING"),
        ("--model . --tokens 0", "error: --tokens must be at least 1"),
        ("--model . --dtypes float16", "error: --dtypes float16 is unknown; supported: float32,"),
        ("--model . --json MISSING/x.json", "error: there is no folder for MISSING"),
        (f"--model . --peer {sys.executable}", "error: the peer reads only .gguf files"),
    ],
)
def test_invalid_options_end_in_one_line(options, message, capsys):
    assert parity.main(options.split()) == 1
    said = capsys.readouterr().err
    assert said.startswith(message) and said.count("\n") == 1


def test_a_peer_that_fails_says_why(tmp_path):
    """The model does not exist; without torch the script fails even earlier."""
    with pytest.raises(ValueError, match="the peer ended with status 1: "):
        peer_script.call("hf_parity.py", sys.executable, tmp_path / "m.gguf", "float32", {})
