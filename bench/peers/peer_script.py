"""Run scripts of `bench/peers` with the interpreter of another Python environment."""

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
PATIENCE = 30.0  # seconds that a peer has to exit by itself


def check(interpreter: str, gguf: Path) -> None:
    """Raise ValueError for errors that would otherwise occur after the warmup of our engine."""
    if shutil.which(interpreter) is None:
        raise ValueError(f"the peer's interpreter {interpreter} cannot be run")
    if gguf.suffix != ".gguf":
        raise ValueError(f"the peer reads only .gguf files, but the model is {gguf}")


def call(
    script: str,
    interpreter: str,
    gguf: Path,
    dtype: str,
    given: dict[str, Any],
    options: Sequence[str] = (),
) -> dict[str, Any]:
    """Pass `given` to the script as a JSON file and return its JSON; raises as `run` does."""
    with tempfile.TemporaryDirectory() as folder:
        task, result = Path(folder) / "given.json", Path(folder) / "result.json"
        task.write_text(json.dumps(given) + "\n", encoding="utf-8")
        files = ["--given", str(task), "--json", str(result)]
        run([*command(script, interpreter, gguf, dtype), *files, *options])
        return json.loads(result.read_text(encoding="utf-8"))


def command(script: str, interpreter: str, gguf: Path, dtype: str) -> list[str]:
    """Return the common part of the command lines of all scripts."""
    return [interpreter, str(FOLDER / script), "--gguf", str(gguf.resolve()), "--dtype", dtype]


def run(command: Sequence[str]) -> None:
    """Run the command of a peer; ValueError with the last line of its stderr if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    if done.returncode:
        raise failure(done.returncode, done.stderr)


def environment() -> dict[str, str]:
    """Return our environment variables without PYTHONPATH, which would give it our packages."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


class Living:
    """A script that stays alive between its runs, with the protocol of `peers/exchange.py`.

    made_with: the JSON of its ready line. startup_seconds: time until that line.
    The constructor and `ask` raise ValueError with the last line of stderr if the script fails.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        start = time.perf_counter()
        # In its own session, so that its child processes can be killed with it.
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
        """Send a task and wait for its result."""
        assert self._process.stdin is not None
        # `_answer` reports a script that has exited.
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Close its stdin, and kill what has not exited after PATIENCE seconds."""
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
    """Return the error for a process that failed, with the last line of its stderr."""
    lines = said.strip().splitlines() or ["no message"]
    return ValueError(f"the peer ended with status {status}: {lines[-1]}")
