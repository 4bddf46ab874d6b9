"""Build a Hugging Face config from GGUF metadata; unsupported metadata raises an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .gguf_file import GgufFile
from .gguf_rope import solve_llama3

ROPE_FACTORS = "rope_freqs.weight"
TOKENS = "tokenizer.ggml.tokens"


def hf_config(
    file: GgufFile, architecture: str, model_type: str, rope_factors: Any = None
) -> dict[str, Any]:
    """Return the config of `file` with the fields of Hugging Face's `config.json`.

    architecture: GGUF's name for `model_type`.
    rope_factors: the float32 [D/2] tensor `rope_freqs.weight`, if there is one.

    Raises ValueError for missing metadata and NotImplementedError for an unsupported value.
    """
    values = _Values(file, architecture)
    _check_supported(values)
    width, heads = values.required("embedding_length"), values.required("attention.head_count")
    head_dim = _head_dim(values, width, heads)
    context = values.required("context_length")
    names = file.tensors
    return {
        "model_type": model_type,
        "vocab_size": _vocab_size(values),
        "hidden_size": width,
        "intermediate_size": values.required("feed_forward_length"),
        "num_hidden_layers": values.required("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": values.get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": values.required("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(values, head_dim, rope_factors),
        "max_position_embeddings": context,
        "tie_word_embeddings": "output.weight" not in names,
        "attention_bias": any(".attn_" in name and name.endswith(".bias") for name in names),
        "mlp_bias": any(".ffn_" in name and name.endswith(".bias") for name in names),
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _eos(file.metadata),
    }


class _Values:
    """Metadata of one architecture; a per-layer list must have the same value in every layer."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self.file, self._prefix = file, f"{architecture}."

    def get(self, name: str, default: Any = None) -> Any:
        value = self.file.metadata.get(self._prefix + name, default)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise NotImplementedError(
                    f"{self.file.path}: {self._prefix}{name} differs between layers: {value}"
                )
            return value[0]
        return value

    def required(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise ValueError(f"{self.file.path} has no metadata {self._prefix + name!r}")
        return value

    def refuse(self, name: str, *allowed: Any) -> None:
        value = self.get(name)
        if value is not None and value not in allowed:
            raise NotImplementedError(
                f"{self.file.path}: {self._prefix}{name}={value!r} is not supported"
            )


def _check_supported(values: _Values) -> None:
    values.refuse("expert_count", 0)
    values.refuse("use_parallel_residual", False)
    values.refuse("rope.scaling.type", "none", "linear")
    # Without a type, a factor means linear scaling; 0 and 1 mean none.
    values.refuse("rope.scaling.factor", 0.0, 1.0)
    values.refuse("rope.scale_linear", 0.0, 1.0)
    values.refuse("attention.scale", 0.0)


def _head_dim(values: _Values, width: int, heads: int) -> int:
    rotated = values.get("rope.dimension_count")
    head_dim = values.get("attention.key_length") or rotated or width // heads
    values.refuse("attention.value_length", head_dim)
    values.refuse("rope.dimension_count", head_dim)
    return head_dim


def _vocab_size(values: _Values) -> int:
    size = values.get("vocab_size")
    tokens = values.file.metadata.get(TOKENS)
    if size is None and tokens is None:
        return values.required("vocab_size")
    return size if size is not None else len(tokens)


def _rope(values: _Values, head_dim: int, rope_factors: Any) -> dict[str, Any]:
    theta = values.get("rope.freq_base", 10000.0)
    if rope_factors is None:
        return {"rope_type": "default", "rope_theta": theta}
    try:
        return solve_llama3(rope_factors, theta, head_dim)
    except NotImplementedError as error:
        raise NotImplementedError(f"{values.file.path}: {ROPE_FACTORS} {error}") from error


def _eos(metadata: Mapping[str, Any]) -> int | list[int] | None:
    """The ids that end a generation: end of text, end of turn (eot) and end of message (eom)."""
    ids = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    found = list(dict.fromkeys(each for each in ids if each is not None))
    return found[0] if len(found) == 1 else (found or None)
