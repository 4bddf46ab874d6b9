"""Scripts of `bench/peers`, run by the interpreter of another Python environment."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PATIENCE = 30.0  # seconds that a peer has to end by itself


def check(interpreter: str, gguf: Path) -> None:
    """Raise ValueError for what would fail only after our own engine was warmed up."""
    if shutil.which(interpreter) is None:
        raise ValueError(f"the peer's interpreter {interpreter} cannot be run")
    if gguf.suffix != ".gguf":
        raise ValueError(f"the peer reads .gguf files alone, and the model is {gguf}")


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
        files = ["--given", str(task), "--json", str(result)]
        run([*command(script, interpreter, gguf, dtype), *files, *options])
        return json.loads(result.read_text(encoding="utf-8"))


def command(script: str, interpreter: str, gguf: Path, dtype: str) -> list[str]:
    """The beginning that the command lines of all scripts have."""
    return [interpreter, str(FOLDER / script), "--gguf", str(gguf.resolve()), "--dtype", dtype]


def run(command: Sequence[str]) -> None:
    """Run the command of a peer; ValueError with the last line that it said when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    if done.returncode:
        raise failure(done.returncode, done.stderr)


def environment() -> dict[str, str]:
    """Ours, in which packages of our own environment are not to be found by the peer's."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


class Living:
    """A script that stays alive between its runs, as `peers/exchange.py` describes it.

    made_with: what it said when it was ready. startup_seconds: until it was.
    Raises ValueError, when made and when asked, with the last line of a script that failed.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        start = time.perf_counter()
        # In a session of its own, so that whatever it started can be ended with it.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            text=True, env=environment(), start_new_session=True,
        )  # fmt: skip
        try:
            self.made_with: dict[str, Any] = self._answer()
        except BaseException:
            self.close()
            raise
        self.startup_seconds = time.perf_counter() - start

    def ask(self, task: dict[str, Any]) -> dict[str, Any]:
        """Hand over a task and wait for its result."""
        assert self._process.stdin is not None
        # A script that is gone is noticed, and explained, where its answer is missing.
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Let it end, and end by force what does not."""
        process = self._process
        if process.poll() is None:
            with suppress(subprocess.TimeoutExpired, BrokenPipeError):
                process.communicate(timeout=PATIENCE)  # closes its stdin
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout, self._errors):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()

    def __enter__(self) -> Living:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return json.loads(line)
        status = self._process.wait()
        self._errors.seek(0)
        raise failure(status, self._errors.read())


def failure(status: int, said: str) -> ValueError:
    """What to raise for a process that ended like this, with the last line that it said."""
    lines = said.strip().splitlines() or ["it said nothing"]
    return ValueError(f"the peer ended with status {status}: {lines[-1]}")
