"""LLaMA (arXiv 2302.13971, 2307.09288, 2407.21783) as a pure function over a params tree.

Matrices are stored `[out, in]` and fused by kv head. The structure is the same in every release:
`{"embed": [V,E], "layers": ({"attn_norm": [E], "qkv": [K,G+2,D,E], "o": [E,K,G,D],
"mlp_norm": [E], "gate_up": [2,F,E], "down": [E,F]}, ...), "norm": [E], "head": [V,E]}`, with
`qkv_bias [K,G+2,D]`, `o_bias [E]`, `gate_up_bias [2,F]` and `down_bias [E]` if the config has
biases, and without `head` if the embeddings are tied. Families that differ in a few leaves
from LLaMA use `decoder_rules`, `forward` and `logits` of this file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from pagedjax.architecture.model_config import ModelConfig
from pagedjax.layers.attention import AttentionInputs
from pagedjax.layers.elementwise import rms_norm, swiglu
from pagedjax.layers.kv_cache import KVCache
from pagedjax.layers.ops import LayerOps
from pagedjax.layers.rope import rope_frequencies, rope_tables
from pagedjax.weights.params import ParamRule, Params

# Buffers in some checkpoints that are recomputed from the config.
SKIPPED_SOURCES = re.compile(r"(^|\.)(rotary_emb\.(inv_freq|cos_cached|sin_cached)|rope\.freqs)$")

# GGUF tensor name -> Hugging Face name; `{}` is the layer, `.weight` and `.bias` are kept.
GGUF_ARCHITECTURE = "llama"
GGUF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
}
# llama.cpp interleaves the two rotary halves of these rows (weights and biases alike).
GGUF_INTERLEAVED = ("q_proj", "k_proj")


class Biases(NamedTuple):
    """Which products of a layer have a bias."""

    qkv: bool = False
    o: bool = False
    mlp: bool = False


def param_rules(config: ModelConfig) -> tuple[ParamRule, ...]:
    """One rule per leaf of the params tree, in the order of the forward pass."""
    attention = config.attention_bias
    return decoder_rules(config, Biases(attention, attention, config.mlp_bias))


def decoder_rules(config: ModelConfig, biases: Biases) -> tuple[ParamRule, ...]:
    """The rules of a family whose tree differs from LLaMA's in its biases only."""
    vocab, width = config.vocab_size, config.hidden_size
    rules = [_plain(("embed",), "model.embed_tokens.weight", (vocab, width), "matrix")]
    for layer in range(config.num_layers):
        rules += _layer_rules(config, biases, layer)
    rules.append(_plain(("norm",), "model.norm.weight", (width,), "norm"))
    if not config.tie_word_embeddings:
        rules.append(_plain(("head",), "lm_head.weight", (vocab, width), "matrix"))
    return tuple(rules)


def _layer_rules(config: ModelConfig, biases: Biases, layer: int) -> list[ParamRule]:
    e, f, d = config.hidden_size, config.intermediate_size, config.head_dim
    h, k, g = config.num_heads, config.num_kv_heads, config.group_size
    at, hf = ("layers", layer), f"model.layers.{layer}"

    def attention(kind: str, *inputs: int) -> ParamRule:
        suffix = "weight" if kind == "matrix" else "bias"
        return ParamRule(
            path=(*at, "qkv" if kind == "matrix" else "qkv_bias"),
            shape=(k, g + 2, d, *inputs),
            sources=tuple(f"{hf}.self_attn.{name}_proj.{suffix}" for name in "qkv"),
            source_shapes=((h * d, *inputs), (k * d, *inputs), (k * d, *inputs)),
            assemble=lambda qkv: np.concatenate(
                [each.reshape(k, -1, d, *inputs) for each in qkv], axis=1
            ),
            spec=P("tp"),
            kind=kind,
        )

    def gate_up(kind: str, *inputs: int) -> ParamRule:
        suffix = "weight" if kind == "matrix" else "bias"
        return ParamRule(
            path=(*at, "gate_up" if kind == "matrix" else "gate_up_bias"),
            shape=(2, f, *inputs),
            sources=tuple(f"{hf}.mlp.{name}_proj.{suffix}" for name in ("gate", "up")),
            source_shapes=((f, *inputs),) * 2,
            assemble=np.stack,
            spec=P(None, "tp"),
            kind=kind,
        )

    out = ParamRule(
        path=(*at, "o"),
        shape=(e, k, g, d),
        sources=(f"{hf}.self_attn.o_proj.weight",),
        source_shapes=((e, h * d),),
        assemble=lambda sources: sources[0].reshape(e, k, g, d),
        spec=P(None, "tp"),
        kind="matrix",
    )
    rules = [
        _plain((*at, "attn_norm"), f"{hf}.input_layernorm.weight", (e,), "norm"),
        attention("matrix", e),
        out,
        _plain((*at, "mlp_norm"), f"{hf}.post_attention_layernorm.weight", (e,), "norm"),
        gate_up("matrix", e),
        _plain((*at, "down"), f"{hf}.mlp.down_proj.weight", (e, f), "matrix", P(None, "tp")),
    ]
    if biases.qkv:
        rules.append(attention("bias"))
    if biases.o:
        rules.append(_plain((*at, "o_bias"), f"{hf}.self_attn.o_proj.bias", (e,), "bias"))
    if biases.mlp:
        rules.append(gate_up("bias"))
        rules.append(_plain((*at, "down_bias"), f"{hf}.mlp.down_proj.bias", (e,), "bias"))
    return rules


def _plain(
    path: tuple[str | int, ...], source: str, shape: tuple[int, ...], kind: str, spec: P = P()
) -> ParamRule:
    return ParamRule(path, shape, (source,), (shape,), _only, spec, kind)


def _only(sources: Sequence[Any]) -> Any:
    return sources[0]


def forward(
    config: ModelConfig,
    params: Params,
    tokens: jax.Array,  # [S]
    positions: jax.Array,  # [S]
    cache: KVCache,
    ops: LayerOps,
    inputs: AttentionInputs,
) -> tuple[jax.Array, KVCache]:  # [S, E] float32
    """Run all layers; return the hidden states before the final norm, and the updated cache.

    One inner jitted function with a traced layer index serves every layer of the same window, so
    that it is traced and lowered once. The residual stream is float32.
    """
    frequencies = rope_frequencies(config.rope, config.head_dim)
    # Without the barrier XLA on CPU recomputes sines, cosines and write positions in every layer.
    tables = rope_tables(positions, frequencies, config.rope.attention_factor)
    rotation, inputs = lax.optimization_barrier((tables, inputs))
    windows = config.windows or (None,) * config.num_layers
    layers = {each: jax.jit(partial(_layer, config, ops, each)) for each in set(windows)}
    with jax.named_scope("embed"):
        x = params["embed"][tokens].astype(jnp.float32)
    parts = None  # partial sums of the previous product, to be added to x
    for index, weights in enumerate(params["layers"]):
        layer = layers[windows[index]]
        x, parts, cache = layer(weights, x, parts, cache, jnp.int32(index), rotation, inputs)
    return (x if parts is None else x + parts.sum(axis=0)), cache


def logits(
    config: ModelConfig,
    params: Params,
    hidden: jax.Array,  # [R, E] float32
    ops: LayerOps,
) -> jax.Array:  # [R, V] float32
    """Final norm and LM head; the head is the embedding matrix when they are tied."""
    with jax.named_scope("head"):
        x = rms_norm(hidden, params["norm"], config.rms_norm_eps)
        return ops.linear(x, params["embed" if config.tie_word_embeddings else "head"])


def _layer(
    config: ModelConfig,
    ops: LayerOps,
    window: int | None,
    weights: dict[str, jax.Array],
    x: jax.Array,  # [S, E]
    parts: jax.Array | None,  # [A, S, E]
    cache: KVCache,
    index: jax.Array,  # scalar
    rotation: tuple[jax.Array, jax.Array],
    inputs: AttentionInputs,
) -> tuple[jax.Array, jax.Array, KVCache]:
    """Run one layer. Its input is the sum of x and of the parts of the previous product.

    Each residual addition is thus computed together with the norm that follows, by one kernel.
    """
    norm = partial(ops.add_norm, eps=config.rms_norm_eps)
    with jax.named_scope("attention"):
        x, normed = norm(x, parts, weights["attn_norm"])
        qkv = ops.product(normed, weights["qkv"], weights.get("qkv_bias"))  # [A, S, K, G + 2, D]
        if "qk_norm" in weights:
            qkv = _normed_heads(qkv, weights["qk_norm"], config.rms_norm_eps)
        out, cache = ops.attend(
            qkv, rotation, cache, index, inputs, normed.dtype, window=window
        )  # [S, K, G, D]
        parts = ops.product(out, weights["o"], weights.get("o_bias"))
    with jax.named_scope("mlp"):
        x, normed = norm(x, parts, weights["mlp_norm"])
        gate_up = ops.linear(normed, weights["gate_up"], weights.get("gate_up_bias"))
        parts = ops.product(swiglu(gate_up), weights["down"], weights.get("down_bias"))
    return x, parts, cache


def _normed_heads(
    qkv: jax.Array,  # [A, S, K, G + 2, D]
    weight: jax.Array,  # [2, D], of queries and of keys
    eps: float,
) -> jax.Array:  # [1, S, K, G + 2, D]
    """RMS norm of every query and key head; values stay."""
    qkv = qkv.sum(axis=0)
    width = qkv.shape[-1]

    def norm(heads: jax.Array, weight: jax.Array) -> jax.Array:
        flat = rms_norm(heads.reshape(-1, width), weight.astype(jnp.float32), eps)
        return flat.reshape(heads.shape)

    queries, keys = norm(qkv[:, :, :-2], weight[0]), norm(qkv[:, :, -2:-1], weight[1])
    return jnp.concatenate([queries, keys, qkv[:, :, -1:]], axis=2)[None]
