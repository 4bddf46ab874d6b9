"""Load a GGUF file as a model of Hugging Face transformers."""

import platform
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
# Any id of the vocabulary: padding is always masked.
PAD_ID = 0


def load(path: Path, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """Load the GGUF at `path` in float32, then cast, so that it is dequantised exactly once."""
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    # Without an EOS id, `generate` neither stops early nor forbids the id, so that greedy ids equal
    # those of an engine that ignores EOS; min_new_tokens would forbid the id.
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = PAD_ID
    return model.to(dtype).eval()


def write_folder(gguf: Path, dtype: torch.dtype, folder: Path) -> None:
    """Write the model and tokenizer as a folder with safetensors, for engines without GGUF."""
    read = load(gguf, torch.float32)
    config = read.config
    # The tensors are no longer quantised.
    del config.quantization_config
    model = type(read)(config).to(torch.float32)
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    model.to(dtype).save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def environment() -> dict:
    """Return versions and settings, for the result."""
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
