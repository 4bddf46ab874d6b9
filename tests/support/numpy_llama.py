"""LLaMA's forward pass in numpy float64: a deliberately naive reference.

Written from the equations of the architecture, for the Hugging Face config dict and tensors. It
shares no code with the engine, so that the two do not share errors.

Letters: S positions, E model width, F ffn width, H query heads, K kv heads, D head dim, V vocab.
"""

import numpy as np


def forward(
    config: dict, tensors: dict[str, np.ndarray], token_ids: list[int] | np.ndarray
) -> np.ndarray:
    """Return the logits [S, V], float64, of the sequence `token_ids` [S] from position 0."""
    weights = {name: np.asarray(value, np.float64) for name, value in tensors.items()}
    eps = config["rms_norm_eps"]
    embedding = weights["model.embed_tokens.weight"]
    x = embedding[np.asarray(token_ids)]  # [S, E]
    for layer in range(config["num_hidden_layers"]):
        w = _below(weights, f"model.layers.{layer}.")
        window = window_of(config, layer)
        x = x + _attention(config, w, _rms_norm(x, w["input_layernorm.weight"], eps), window)
        x = x + _mlp(w, _rms_norm(x, w["post_attention_layernorm.weight"], eps))
    x = _rms_norm(x, weights["model.norm.weight"], eps)
    head = embedding if config["tie_word_embeddings"] else weights["lm_head.weight"]
    return x @ head.T


def window_of(config: dict, layer: int) -> float:
    """Return how many keys, its own included, a query of this layer attends to at most."""
    window = config.get("sliding_window")
    if config["model_type"] == "mistral" and window is not None:
        return window
    if config["model_type"] in ("qwen2", "qwen3") and config["use_sliding_window"]:
        return window if layer >= config["max_window_layers"] else np.inf
    return np.inf


def _attention(config: dict, w: dict[str, np.ndarray], x: np.ndarray, window: float) -> np.ndarray:
    """Causal grouped-query attention over x [S, E], one query head at a time."""
    positions, heads = len(x), config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    omega = inverse_frequencies(config)  # [D / 2]
    q = _linear(w, "self_attn.q_proj", x).reshape(positions, heads, -1)
    k = _linear(w, "self_attn.k_proj", x).reshape(positions, kv_heads, -1)
    if "self_attn.q_norm.weight" in w:  # of Qwen3
        q = _rms_norm(q, w["self_attn.q_norm.weight"], config["rms_norm_eps"])
        k = _rms_norm(k, w["self_attn.k_norm.weight"], config["rms_norm_eps"])
    q, k = _rotate(q, omega), _rotate(k, omega)
    q, k = q * attention_factor(config), k * attention_factor(config)
    v = _linear(w, "self_attn.v_proj", x).reshape(positions, kv_heads, -1)
    mixed = np.empty_like(q)  # [S, H, D]
    for head in range(heads):
        group = head // (heads // kv_heads)  # neighbouring query heads share a kv head
        scores = q[:, head] @ k[:, group].T / np.sqrt(head_dim(config))
        distance = np.subtract.outer(np.arange(positions), np.arange(positions))
        scores[(distance < 0) | (distance >= window)] = -np.inf  # future, or past the window
        mixed[:, head] = _softmax(scores) @ v[:, group]
    return _linear(w, "self_attn.o_proj", mixed.reshape(positions, -1))


def _mlp(w: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    gate = _linear(w, "mlp.gate_proj", x)
    silu = gate / (1.0 + np.exp(-gate))
    return _linear(w, "mlp.down_proj", silu * _linear(w, "mlp.up_proj", x))


def _rotate(x: np.ndarray, omega: np.ndarray) -> np.ndarray:
    """Turn each pair of x [S, heads, D] by position times frequency.

    Hugging Face pairs element i with element i + D/2. Here a pair is a complex number, which
    exp(ia) rotates by the angle a.
    """
    half = x.shape[-1] // 2
    pairs = x[..., :half] + 1j * x[..., half:]
    turned = pairs * np.exp(1j * np.outer(np.arange(len(x)), omega))[:, None]
    return np.concatenate([turned.real, turned.imag], axis=-1)


def inverse_frequencies(config: dict) -> np.ndarray:
    """Return the angles [D / 2], in radians, by which one position turns each pair."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta") or config.get("rope_theta") or 10000.0
    dim = head_dim(config)
    omega = theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return omega
    if kind == "linear":
        return omega / rope["factor"]
    if kind == "yarn":
        return np.array([_yarn_frequency(rope, theta, dim, pair) for pair in range(dim // 2)])
    if kind != "llama3":
        raise ValueError(f"rope type {kind!r} is not known")
    # Pairs with many turns within the original context keep their frequency, pairs with few turns
    # are divided by the factor, and the others are interpolated linearly in their turns.
    turns = omega * rope["original_max_position_embeddings"] / (2.0 * np.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return omega * (keep + (1.0 - keep) / rope["factor"])


def _yarn_frequency(rope: dict, theta: float, dim: int, pair: int) -> float:
    """YaRN (arXiv 2309.00071, section 3.2): where the ramp is 0, the pair keeps its frequency."""
    ends = []
    for turns in (rope.get("beta_fast", 32), rope.get("beta_slow", 1)):
        # The pair, as a real number, that makes so many turns within the original context:
        # original * theta ** (-2 pair / dim) = 2 pi turns.
        ratio = rope["original_max_position_embeddings"] / (2 * np.pi * turns)
        ends.append(dim / 2 * np.log(ratio) / np.log(theta))
    if rope.get("truncate", True):
        ends = [np.floor(ends[0]), np.ceil(ends[1])]
    first, last = max(ends[0], 0), min(ends[1], dim - 1)
    ramp = min(max((pair - first) / (last - first), 0), 1)
    own = theta ** (-2 * pair / dim)
    return own * (1 - ramp) + own / rope["factor"] * ramp


def attention_factor(config: dict) -> float:
    """Return what queries and keys are multiplied by, beside their rotation."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if (rope.get("rope_type") or rope.get("type")) != "yarn":
        return 1.0
    return rope.get("attention_factor") or 1 + 0.1 * np.log(rope["factor"])


def head_dim(config: dict) -> int:
    """Return D from the config, or else E / H."""
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def _linear(w: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)


def _rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight


def _softmax(scores: np.ndarray) -> np.ndarray:
    unnormalised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return unnormalised / unnormalised.sum(axis=-1, keepdims=True)


def _below(weights: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Return the tensors whose names start with `prefix`, with the prefix removed."""
    return {name[len(prefix) :]: w for name, w in weights.items() if name.startswith(prefix)}
