"""The tiny models of `tiny_models.py` as GGUF files, in the row order of llama.cpp.

The row order is written out here independently of the converter that undoes it.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.support.tiny_models import hf_config, hf_tensors

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    name: str,
    path: str | Path,
    quantise: Callable[[str], gguf.GGMLQuantizationType] | None = None,
    edit: Callable[[gguf.GGUFWriter], Any] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
) -> None:
    """Write variant `name` as GGUF, by default in F32 and without a tokenizer.

    `quantise` maps a GGUF tensor name to a type; `edit` adds metadata before the tensors are
    written; `tensors` are additional tensors by GGUF name.
    """
    config = hf_config(name)
    writer = gguf.GGUFWriter(path, "llama")
    _add_metadata(writer, config)
    if edit is not None:
        edit(writer)
    for gguf_name, array in (gguf_tensors(name) | (tensors or {})).items():
        if quantise is None:
            writer.add_tensor(gguf_name, array)
        else:
            kind = quantise(gguf_name)
            writer.add_tensor(gguf_name, gguf.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_tensors(name: str) -> dict[str, np.ndarray]:
    """Return the float32 tensors of variant `name` under their GGUF names, rows interleaved."""
    config = hf_config(name)
    tensors = {}
    for hf_name, array in hf_tensors(name).items():
        if ".q_proj." in hf_name:
            array = interleaved(array, config["num_attention_heads"])
        if ".k_proj." in hf_name:
            array = interleaved(array, config["num_key_value_heads"])
        tensors[_gguf_name(hf_name)] = array
    if config["rope_parameters"]["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = rope_factors(config)
    return tensors


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Put row j of the second half of every head right after row j of its first half."""
    size = len(rows) // heads
    order = [
        head * size + half * (size // 2) + j
        for head in range(heads)
        for j in range(size // 2)
        for half in (0, 1)
    ]
    return np.ascontiguousarray(rows[order])


def rope_factors(config: dict) -> np.ndarray:
    """The factor by which llama3 scaling divides each frequency, float32 [head_dim / 2]."""
    rope, size = config["rope_parameters"], _head_dim(config)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    context, factors = rope["original_max_position_embeddings"], []
    for i in range(0, size, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / size)
        if wavelength < context / high:
            factors.append(1.0)
        elif wavelength > context / low:
            factors.append(rope["factor"])
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def _add_metadata(writer: gguf.GGUFWriter, config: dict) -> None:
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(_head_dim(config))
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])


def _gguf_name(hf_name: str) -> str:
    stem, _, kind = hf_name.rpartition(".")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.{kind}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_NAMES[part]}.{kind}"


def _head_dim(config: dict) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
