"""Scripts that answer as those of `bench/peers` do, using the standard library only."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.peers import peer_script

# The n-th answer says that it took n seconds, and outputs are zeros. With arrivals, a request's
# first token comes 0.5 s after its arrival and the others one second apart. The prompt [13] ends
# the process with an error.
FAKE_PEER = """\
import json
import sys

rows = sys.argv[sys.argv.index("--rows") + 1]
print(json.dumps({"torch": "2", "rows": rows}), flush=True)
for count, line in enumerate(sys.stdin, 1):
    task = json.loads(line)
    if task["prompts"] == [[13]]:
        print("no more", file=sys.stderr)
        sys.exit(3)
    lengths = task["output_lens"]
    result = {"seconds": count, "outputs": [[0] * length for length in lengths]}
    if "arrivals" in task:
        pairs = zip(task["arrivals"], lengths)
        result = {"times": [[[at + 0.5 + i for i in range(n)], n] for at, n in pairs]}
    print(json.dumps(result), flush=True)
"""


def write_fake_peers(folder: Path, monkeypatch: pytest.MonkeyPatch, *scripts: str) -> None:
    """Write fakes of these scripts to `folder`, and let `peer_script` take scripts from there."""
    for name in scripts:
        (folder / name).write_text(FAKE_PEER)
    monkeypatch.setattr(peer_script, "FOLDER", folder)
