"""Tiny random LLaMA checkpoints in Hugging Face form, one variant per config feature.

Only numpy and safetensors are needed, so that the tests and the scripts of the goldens build the
same weights in different environments. `tests/goldens` depends on the random draws: never change
them.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

_COMMON = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "float32",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

# Wavelengths of head_dim 16: 6 positions (kept), 32 (blended), 167 and more (divided by 8).
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

# Only four frequencies at head_dim 8: 6 positions (kept), 167 (blended), 4443 and more (divided).
# Its factors differ from the published ones, so that hard-coded constants fail.
_LLAMA3_WIDE = _LLAMA3 | {
    "factor": 4.0,
    "high_freq_factor": 2.0,
    "original_max_position_embeddings": 256,
}

VARIANTS: dict[str, dict] = {
    "base": {},
    "head_dim": {
        "hidden_size": 40,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    },
    "bias": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "llama3": {
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "rope_parameters": _LLAMA3,
    },
    # Hidden size 60, since Hugging Face wants a multiple of the head count; 60 / 6 != head_dim.
    "all": {
        "hidden_size": 60,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 8,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
        "rope_parameters": _LLAMA3_WIDE,
    },
}

_SEEDS = {
    "base": 101,
    "head_dim": 102,
    "bias": 103,
    "tied": 104,
    "theta": 105,
    "llama3": 106,
    "all": 107,
}

# Larger queries and keys make the attention peaked, so that a wrong position changes the logits.
_QK_GAIN = 1.5

GOLDEN_LENGTH = 160


def hf_config(name: str) -> dict:
    """Return a fresh config dict of variant `name`, as transformers 5 writes config.json."""
    return json.loads(json.dumps(_COMMON | VARIANTS[name]))


def hf_tensors(name: str) -> dict[str, np.ndarray]:
    """Return the float32 weights of variant `name` under their Hugging Face names.

    Matrices are [out, in]. No bias is 0 and no norm is 1, which would hide lost tensors.
    """
    config = hf_config(name)
    rng = np.random.RandomState(_SEEDS[name])
    width, vocab = config["hidden_size"], config["vocab_size"]
    tensors = {"model.embed_tokens.weight": _matrix(rng, vocab, width)}
    for layer in range(config["num_hidden_layers"]):
        tensors |= _layer_tensors(config, rng, f"model.layers.{layer}.")
    tensors["model.norm.weight"] = _norm(rng, width)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = _matrix(rng, vocab, width)
    return tensors


def write_hf_folder(name: str, path: str | Path, shards: int = 1) -> None:
    """Write variant `name` to folder `path`: config.json and `shards` safetensors files.

    One shard is `model.safetensors`; more are numbered files with an index beside them.
    """
    tensors = hf_tensors(name)
    if not 1 <= shards <= len(tensors):
        raise ValueError(
            f"shards is {shards}, but must be 1 to {len(tensors)}, the tensors there are."
        )
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", hf_config(name))
    if shards == 1:
        _save(tensors, folder / "model.safetensors")
    else:
        _write_shards(tensors, folder, shards)


def golden_tokens() -> list[int]:
    """Return the fixed input of the logits goldens: GOLDEN_LENGTH ids over the whole vocabulary."""
    rng = np.random.RandomState(20)
    return rng.randint(0, _COMMON["vocab_size"], size=GOLDEN_LENGTH).tolist()


def _layer_tensors(config: dict, rng: np.random.RandomState, prefix: str) -> dict[str, np.ndarray]:
    """Draw the tensors of one decoder layer, in a fixed order."""
    width = config["hidden_size"]
    tensors = {}
    for linear, (rows, columns, gain, biased) in _linears(config).items():
        tensors[f"{prefix}{linear}.weight"] = _matrix(rng, rows, columns, gain)
        if biased:
            tensors[f"{prefix}{linear}.bias"] = _float32(0.1 * rng.standard_normal(rows))
    tensors[f"{prefix}input_layernorm.weight"] = _norm(rng, width)
    tensors[f"{prefix}post_attention_layernorm.weight"] = _norm(rng, width)
    return tensors


def _linears(config: dict) -> dict[str, tuple[int, int, float, bool]]:
    """Map the linears of a layer to (rows, columns, gain, has bias)."""
    width, ffn = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or width // heads
    attention, mlp = config["attention_bias"], config["mlp_bias"]
    return {
        "self_attn.q_proj": (heads * head_dim, width, _QK_GAIN, attention),
        "self_attn.k_proj": (kv_heads * head_dim, width, _QK_GAIN, attention),
        "self_attn.v_proj": (kv_heads * head_dim, width, 1.0, attention),
        "self_attn.o_proj": (width, heads * head_dim, 1.0, attention),
        "mlp.gate_proj": (ffn, width, 1.0, mlp),
        "mlp.up_proj": (ffn, width, 1.0, mlp),
        "mlp.down_proj": (width, ffn, 1.0, mlp),
    }


def _matrix(rng: np.random.RandomState, rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
    """Draw a [rows, columns] matrix whose products keep the size of their input, times `gain`."""
    return _float32(gain / np.sqrt(columns) * rng.standard_normal((rows, columns)))


def _norm(rng: np.random.RandomState, width: int) -> np.ndarray:
    return _float32(1.0 + 0.1 * rng.standard_normal(width))


def _float32(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.float32)


def _write_shards(tensors: dict[str, np.ndarray], folder: Path, shards: int) -> None:
    """Distribute the tensors round-robin, so that every layer spans several files."""
    weight_map = {}
    for shard in range(shards):
        file_name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        names = sorted(tensors)[shard::shards]
        _save({name: tensors[name] for name in names}, folder / file_name)
        weight_map |= dict.fromkeys(names, file_name)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    _write_json(folder / "model.safetensors.index.json", index)


def _save(tensors: dict[str, np.ndarray], path: Path) -> None:
    # transformers refuses a safetensors file that does not name its format.
    save_file(tensors, path, metadata={"format": "pt"})


def _write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
