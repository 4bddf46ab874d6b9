"""Other engines as contenders: processes of another Python environment that stay alive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers import peer_script
from bench.serving.trial import Trial
from bench.serving.workload import MAX_MODEL_LEN, Workload


@dataclass(frozen=True)
class Kind:
    """A script of `bench/peers`, and its name in tables."""

    script: str
    label: str


KINDS = {
    "hf_static": Kind("hf_static.py", "transformers, static batches of {rows}"),
    "hf_continuous": Kind("hf_continuous.py", "transformers, continuous"),
    "vllm": Kind("vllm_offline.py", "vLLM, continuous"),
    "vllm_online": Kind("vllm_online.py", "vLLM"),
}
OFFLINE = ("hf_static", "hf_continuous", "vllm")


class Peer:
    """One engine that is ready to run; a context manager that closes it.

    kind: a name of KINDS. rows: most requests that run at once.
    Raises ValueError if the script fails.
    """

    def __init__(self, kind: str, interpreter: str, gguf: Path, dtype: str, rows: int) -> None:
        if kind not in KINDS:
            raise ValueError(f"the peer {kind!r} is unknown; supported: {', '.join(KINDS)}")
        self.name = KINDS[kind].label.format(rows=rows)
        command = peer_script.command(KINDS[kind].script, interpreter, gguf, dtype)
        limits = ["--rows", str(rows), "--max-model-len", str(MAX_MODEL_LEN)]
        self._living = peer_script.Living([*command, *limits])

    @property
    def details(self) -> dict[str, Any]:
        """Versions, and the seconds until the peer was ready."""
        return self._living.made_with | {"startup_seconds": round(self._living.startup_seconds, 2)}

    def run(self, workload: Workload) -> Trial:
        """Run the workload once with all requests at once; loading and warmup are not timed."""
        result = self._living.ask(workload.task())
        return Trial(result["seconds"], result["outputs"], self.details)

    def serve(self, workload: Workload, arrivals: list[float]) -> list[tuple[list[float], int]]:
        """Run the workload with each request at its arrival time.

        Returns for each request the seconds at which its tokens came, and their number.
        """
        return self._living.ask(workload.task() | {"arrivals": arrivals})["times"]

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._living.close()
