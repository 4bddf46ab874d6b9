"""Set up vLLM's CPU build for a GGUF file."""

import os
import platform
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from exchange import arguments

# Set before the import of vLLM, which reads them.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, os.sched_getaffinity(0))))

WARM_PROMPTS, WARM_TOKENS = [[1] * 16] * 16, 4
# The engine's worker busy-waits for one second after its last task.
SETTLE_SECONDS = 1.5


class EngineFolder:
    """A temporary folder with the model in a format that vLLM reads, and the engine's options."""

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
        """Return the result when the worker sleeps, so that it takes no CPU time from others."""
        time.sleep(SETTLE_SECONDS)
        return result

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._path, ignore_errors=True)


def environment() -> dict:
    """Return versions, for the result."""
    import torch
    import vllm

    return {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def greedy(tokens: int, delta: bool = False) -> Any:
    """Return sampling parameters. delta: each output has only the new tokens."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    kind = RequestOutputKind.DELTA if delta else RequestOutputKind.FINAL_ONLY
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, output_kind=kind)
