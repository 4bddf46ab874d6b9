"""Hugging Face transformers as a contender: a process of another Python environment."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import peer_script
from bench.trial import Trial
from bench.workload import Workload

SCRIPT = peer_script.FOLDER / "hf_static.py"
DETAILS = ("torch", "transformers", "python", "threads")


@dataclass(frozen=True)
class Peer:
    """Static batches of `batch` requests by `SCRIPT`, run with `interpreter`."""

    interpreter: str
    gguf: Path
    dtype: str
    batch: int

    def check(self) -> None:
        """Raise ValueError for what would fail only after our own engine was warmed up."""
        if shutil.which(self.interpreter) is None:
            raise ValueError(f"the peer's interpreter {self.interpreter} cannot be run")
        if self.gguf.suffix != ".gguf":
            raise ValueError(f"the peer reads .gguf files alone, and the model is {self.gguf}")

    def run(self, workload: Workload) -> Trial:
        """Run the workload once; loading the model is not timed."""
        with tempfile.TemporaryDirectory() as folder:
            given, result = Path(folder) / "workload.json", Path(folder) / "result.json"
            workload.write(given)
            self._call(["--workload", str(given), "--json", str(result)])
            return _trial(json.loads(result.read_text(encoding="utf-8")))

    def _call(self, files: list[str]) -> None:
        command = [
            self.interpreter, str(SCRIPT), "--gguf", str(self.gguf.resolve()),
            "--dtype", self.dtype, "--batch", str(self.batch), "--repeats", "1", *files,
        ]  # fmt: skip
        peer_script.run(command)


def _trial(result: dict[str, Any]) -> Trial:
    details = {name: result[name] for name in DETAILS}
    return Trial(result["seconds"][0], result["outputs"], details)
