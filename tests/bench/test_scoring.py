"""The scoring benchmark: its lists, its arithmetic, its report, and a small run."""

import json
import sys

import numpy as np
import pytest

from bench import scoring
from bench.accuracy import scoring_report
from bench.accuracy.token_lists import SHARED_LEN, branching, extended
from bench.peers import peer_script
from bench.serving.trial import Trial
from bench.serving.workload import make_workload
from tests.support.tiny_models import write_hf_folder


def test_lists_are_extended_to_the_longest():
    ragged = list(make_workload(8, end_id=128).prompts)
    longer = extended(ragged, 128)
    assert {len(each) for each in longer} == {max(map(len, ragged))}
    for short, long in zip(ragged, longer, strict=True):
        assert long[: len(short)] == short and all(3 <= token < 128 for token in long)
    # Extended lists share no prefix.
    assert len({tuple(each[:16]) for each in longer}) == 8


def test_lists_branch_after_shared_prompts():
    lists = branching(49_000)
    assert len(lists) == 64 and {len(each) for each in lists} == {256}
    assert len({tuple(each[:SHARED_LEN]) for each in lists}) == 8
    assert len({tuple(each[SHARED_LEN:]) for each in lists}) == 64


def trials_of(*seconds, compilations=None, tokens=100, logprobs=(-1.0, -2.0), cpu=1.0):
    details = {"logprobs": [np.array(logprobs, np.float32)], "cpu_seconds": cpu}
    details |= {"torch": "2"} if compilations is None else {"compilations": compilations}
    return [Trial(each, [[1] * tokens], dict(details)) for each in seconds]


def made_up(peer=True, compilations=0):
    trials = {
        scoring_report.EQUAL: trials_of(1.0, 2.0, 1.0, compilations=compilations, tokens=200),
        scoring_report.RAGGED: trials_of(0.5, 1.0, 0.5, compilations=0),
        scoring_report.PEER: trials_of(1.5, 2.0, 2.0, logprobs=(-1.0, -2.5), cpu=4.0),
        scoring_report.SHARING: trials_of(1.0, 1.0, 1.0, compilations=0),
        scoring_report.ALONE: trials_of(3.0, 2.0, 2.5, compilations=0),
    }
    if not peer:
        del trials[scoring_report.PEER]
    about = {
        "parameters": {"model": "m.gguf"},
        "workload": {"lists": 1, "tokens": 100, "padded_tokens": 200},
    }
    return about | scoring_report.summary(trials)


def test_ratios_are_those_of_each_repeat():
    """Medians of the repeats' ratios, not ratios of medians."""
    result = made_up()
    for name, repeats, cpu in [
        ("at_equal_padding", [1.5, 1.0, 2.0], 4.0),
        ("as_they_are", [3.0, 2.0, 4.0], 4.0),
        ("prefix_sharing", [3.0, 2.0, 2.5], 1.0),
    ]:
        median = sorted(repeats)[1]
        assert result[name] == {
            "median": median, "repeats": repeats, "cpu_median": cpu, "cpu_repeats": [cpu] * 3,
        }  # fmt: skip
    assert result["max_abs_difference"] == 0.5
    assert result["engines"][0]["tokens_per_second"]["median"] == 200
    assert result["engines"][1]["tokens"] == 100
    json.dumps(result)  # it has no arrays


def test_report_of_made_up_trials():
    said = scoring_report.lines(made_up())
    table = [line.split()[-7:] for line in said if line.startswith("pagedjax, extended")]
    assert table == [["100.0", "-", "200.0", "1.00", "1.00", "200", "0"]]
    assert "pagedjax over transformers at equal padding: 1.50 x; in CPU seconds 4.00 x" in said
    assert "pagedjax over transformers, lists as they are: 3.00 x; in CPU seconds 4.00 x" in said
    assert said[-1] == "shared prefixes: 2.50 x; in CPU seconds 1.00 x"
    assert "WARNING: 3 PROGRAM(S)" in scoring_report.lines(made_up(compilations=1))[-1]


def test_report_without_a_peer():
    result = made_up(peer=False)
    assert result["at_equal_padding"] is result["max_abs_difference"] is None
    assert not any("transformers" in line for line in scoring_report.lines(result))


def test_a_small_run(tmp_path, capsys, monkeypatch):
    """End to end on a tiny model, with a fake instead of the peer's process."""
    write_hf_folder("base", tmp_path / "tiny")

    def call(script, interpreter, gguf, dtype, given, options):
        assert (script, gguf.name, dtype) == ("hf_scoring.py", "tiny", "float32")
        assert options == ["--batch", "4"]
        found = [[-5.0] * (len(each) - 1) for each in given["lists"]]
        about = {"torch": "2", "transformers": "5", "python": "3", "threads": 1}
        return {"seconds": 100.0, "cpu_seconds": 150.0, "logprobs": found} | about

    monkeypatch.setattr(peer_script, "call", call)
    monkeypatch.setattr(peer_script, "check", lambda *_: None)  # it would refuse a folder
    options = "--repeats 1 --num-lists 6 --batch 4 --max-num-batched-tokens 512".split()
    status = scoring.main(
        ["--model", str(tmp_path / "tiny"), "--peer", sys.executable, *options,
         "--json", str(tmp_path / "out.json")]
    )  # fmt: skip
    printed = capsys.readouterr()
    assert status == 0, printed.err
    result = json.loads((tmp_path / "out.json").read_text())
    assert str(tmp_path) not in json.dumps(result)
    lengths = [len(each) for each in make_workload(6, end_id=128).prompts]
    assert result["workload"] == {
        "lists": 6, "tokens": sum(lengths), "padded_tokens": 6 * max(lengths),
    }  # fmt: skip
    by_name = {each["name"]: each for each in result["engines"]}
    assert by_name[scoring_report.EQUAL]["tokens"] == 6 * max(lengths)
    assert by_name[scoring_report.RAGGED]["tokens"] == sum(lengths)
    assert (
        by_name[scoring_report.SHARING]["tokens"]
        == by_name[scoring_report.ALONE]["tokens"]
        == 64 * 256
    )
    for name in (
        scoring_report.EQUAL,
        scoring_report.RAGGED,
        scoring_report.SHARING,
        scoring_report.ALONE,
    ):
        assert by_name[name]["repeats"][0]["compilations"] == 0
    assert result["at_equal_padding"]["median"] > 1
    assert result["prefix_sharing"]["median"] > 1
    assert "repeat 1 of 1" in printed.err


@pytest.mark.parametrize(
    "options, message",
    [
        ("--model MISSING", "error: there is no model at MISSING"),
        ("--model . --repeats 0", "error: --repeats must be at least 1"),
        ("--model . --num-lists 0", "error: --num-lists must be at least 1"),
        ("--model . --json MISSING/x.json", "error: there is no folder for MISSING"),
        (f"--model . --peer {sys.executable}", "error: the peer reads only .gguf files"),
    ],
)
def test_invalid_options_end_in_one_line(options, message, capsys):
    assert scoring.main(options.split()) == 1
    said = capsys.readouterr().err
    assert said.startswith(message) and said.count("\n") == 1
