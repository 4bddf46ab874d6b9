"""Peers: processes of other engines, and the JSON lines exchanged with them."""

import json
import signal
import subprocess
import sys
import time

import pytest

from bench.peers import peer_script
from bench.peers.peer import Peer
from bench.serving.workload import Workload
from tests.support.fake_peer import write_fake_peers

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


def test_peers_exchange_lines_of_json(tmp_path):
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER.format(folder=str(peer_script.FOLDER)))
    with peer_script.Living([sys.executable, str(script)]) as peer:
        assert peer.made_with == {"torch": "2"}
        assert [peer.ask({"seconds": each}) for each in (0, 0.01)] == [
            {"seconds": 0}, {"seconds": 0.01},
        ]  # fmt: skip


@pytest.mark.parametrize("begun_with", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_peer_is_interrupted_when_its_caller_exits(tmp_path, begun_with):
    """Also if the caller is a background job, whose children start with SIGINT ignored."""
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
            time.sleep(0.5)  # by now it blocks in a system call, which only a signal interrupts
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert "cleaned up" in said


def test_a_peer_that_fails_later_says_why(tmp_path, monkeypatch):
    write_fake_peers(tmp_path, monkeypatch, "vllm_offline.py")
    model = tmp_path / "m.gguf"
    with Peer("vllm", sys.executable, model, "float32", 2) as peer:
        with pytest.raises(ValueError, match="the peer ended with status 3: no more"):
            peer.run(Workload(([13],), (1,)))
    with pytest.raises(ValueError, match="'sglang' is unknown; supported: hf_static, hf_cont"):
        Peer("sglang", sys.executable, model, "float32", 2)


def test_a_peer_that_fails_says_why(tmp_path):
    """The model does not exist; without torch the script fails even earlier."""
    model = tmp_path / "m.gguf"
    with pytest.raises(ValueError, match="the peer ended with status 1: "):
        Peer("hf_static", sys.executable, model, "float32", 2)
