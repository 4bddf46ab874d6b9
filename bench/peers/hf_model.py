"""A GGUF file as a model of Hugging Face transformers, and what it runs with."""

import platform
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
# Masked everywhere, so any id of the vocabulary does.
PAD_ID = 0


def load(path: Path, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """Load the GGUF at `path` in float32, then cast, so that it is dequantised exactly once."""
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    # Without an end token generate neither stops early nor forbids the id, so greedy ids compare
    # with those of an engine that ignores EOS; min_new_tokens would forbid it instead.
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = PAD_ID
    return model.to(dtype).eval()


def write_folder(gguf: Path, dtype: torch.dtype, folder: Path) -> None:
    """Write the model and its tokenizer as a folder with safetensors, for who reads no GGUF."""
    read = load(gguf, torch.float32)
    config = read.config
    # It says that the tensors are quantised, which they no longer are.
    del config.quantization_config
    model = type(read)(config).to(torch.float32)
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    model.to(dtype).save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def environment() -> dict:
    """Return what a peer's run was made with."""
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
