"""One run of a script of `bench/peers` by the interpreter of another Python environment."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "peers"


def call(
    script: str,
    interpreter: str,
    gguf: Path,
    dtype: str,
    given: dict[str, Any],
    options: Sequence[str] = (),
) -> dict[str, Any]:
    """Hand `given` to the script as a JSON file and return what it wrote; raises as `run` does."""
    with tempfile.TemporaryDirectory() as folder:
        task, result = Path(folder) / "given.json", Path(folder) / "result.json"
        task.write_text(json.dumps(given) + "\n", encoding="utf-8")
        command = [
            interpreter, str(FOLDER / script), "--gguf", str(gguf.resolve()), "--dtype", dtype,
            "--given", str(task), "--json", str(result), *options,
        ]  # fmt: skip
        run(command)
        return json.loads(result.read_text(encoding="utf-8"))


def run(command: Sequence[str]) -> None:
    """Run the command of a peer; ValueError with the last line that it said when it fails."""
    # Packages of our own environment are not to be found by the peer's.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise ValueError(f"the peer ended with status {done.returncode}: {said[-1]}")
