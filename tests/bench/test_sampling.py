"""The sampling benchmark: its timer, its kinds of sampling, and a small run."""

import json
import time

import jax
import pytest

from bench import sampling
from tests.support.tiny_models import write_hf_folder


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch):
    monkeypatch.setattr(sampling, "BLOCKS", 2)
    monkeypatch.setattr(sampling, "HISTORY", 16)
    steps = {name: sampling.STEPS[name] for name in ("greedy", "top-k + top-p")}
    monkeypatch.setattr(sampling, "STEPS", steps)


def test_functions_take_turns_and_the_first_block_is_not_counted():
    calls = []

    def slow():
        calls.append("slow")
        time.sleep(0.5 if len(calls) <= 4 else 0.01)

    times = sampling.interleaved({"slow": slow, "fast": lambda: calls.append("fast")}, 2)
    assert calls == ["slow", "fast"] * 6
    slow_times = times["slow"]
    assert 10 <= slow_times["min_ms"] <= slow_times["median_ms"] <= slow_times["max_ms"] < 500
    assert times["fast"]["median_ms"] < 10


@pytest.mark.slow
def test_every_sort_chooses_a_token_of_the_vocabulary():
    for name, (function, args) in sampling.sorts(2, 200).items():
        tokens = jax.tree.leaves(jax.jit(function).lower(*args).compile()(*args))[0]
        assert tokens.shape == (2,) and 0 <= tokens.min() and tokens.max() < 200, name


def test_a_small_run(tmp_path, capsys):
    write_hf_folder("base", tmp_path / "model")
    arguments = ["--rows", "2", "--vocab", "200", "--repeats", "1", "--debug"]
    arguments += ["--model", str(tmp_path / "model"), "--json", str(tmp_path / "result.json")]
    assert sampling.main(arguments) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    names = {each["name"] for each in result["sampling"] if each["vocab"] == 200}
    assert {"greedy", "top-k 40 + top-p 0.95", "penalties", "logprobs=5"} <= names
    assert all(each["median_ms"] > 0 for each in result["sampling"])
    assert [each["name"] for each in result["steps"]] == list(sampling.STEPS)
    assert all(each["share"] > 0 for each in result["steps"])
    assert "2 rows of 200 logits" in capsys.readouterr().out


def test_invalid_options_end_in_one_line(capsys):
    assert sampling.main(["--rows", "0"]) != 0
    assert "--rows" in capsys.readouterr().err
