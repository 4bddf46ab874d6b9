"""How the peers make an engine of vLLM's CPU build from a GGUF file."""

import os
import platform
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from exchange import arguments

# vLLM reads these while it is imported, so they are set before.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, os.sched_getaffinity(0))))

WARM_PROMPTS, WARM_TOKENS = [[1] * 16] * 16, 4
# The engine's worker looks for more work without sleeping for a second after the last.
SETTLE_SECONDS = 1.5


class EngineFolder:
    """A temporary folder with the model in the form that vLLM reads, and the engine's options."""

    def __init__(self, doc: str) -> None:
        self.args = arguments(doc)
        self._path = Path(tempfile.mkdtemp())

    def options(self) -> dict:
        """Write the model and return the options of the engine."""
        from hf_model import DTYPES, write_folder

        write_folder(self.args.gguf, DTYPES[self.args.dtype], self._path)
        return {
            "model": str(self._path),
            "dtype": self.args.dtype,
            "max_model_len": self.args.max_model_len,
            "max_num_seqs": self.args.rows,
            "enable_prefix_caching": False,
        }

    def settled(self, result: dict) -> dict:
        """Return the result once the engine sleeps, so that it takes no time from who runs next."""
        time.sleep(SETTLE_SECONDS)
        return result

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._path, ignore_errors=True)


def environment() -> dict:
    """Return what a peer's run was made with."""
    import torch
    import vllm

    return {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def greedy(tokens: int, delta: bool = False) -> Any:
    """Return a request's parameters. delta: its outputs have the new tokens alone."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    kind = RequestOutputKind.DELTA if delta else RequestOutputKind.FINAL_ONLY
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, output_kind=kind)
