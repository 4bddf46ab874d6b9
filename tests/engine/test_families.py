"""Families other than LLaMA through the engine, against the naive reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedjax import LLM, ModelConfig, SamplingParams
from tests.support import numpy_llama
from tests.support.hf_folders import write
from tests.support.tiny_models import hf_config, hf_tensors

TOKENS = np.random.RandomState(9).randint(0, 128, 150).tolist()


def qwen2() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Biases on queries, keys and values alone, and no key for it in the config."""
    config = hf_config("bias") | {"model_type": "qwen2", "use_sliding_window": False}
    config |= {"sliding_window": 32, "max_window_layers": 1}
    for name in ("attention_bias", "mlp_bias"):
        del config[name]
    tensors = {
        name: each for name, each in hf_tensors("bias").items()
        if not name.endswith(".bias") or name.split(".")[-2] in ("q_proj", "k_proj", "v_proj")
    }  # fmt: skip
    return config, tensors


def mistral() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """An explicit head_dim that is not hidden_size / num_attention_heads, and no window."""
    config = hf_config("head_dim") | {"model_type": "mistral", "sliding_window": None}
    return config, hf_tensors("head_dim")


def qwen2_window() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The first layer attends to everything, the second one to 32 keys."""
    config, tensors = qwen2()
    return config | {"use_sliding_window": True}, tensors


def mistral_window() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Every layer attends to 21 keys, which is no multiple of a block or a chunk."""
    config, tensors = mistral()
    return config | {"sliding_window": 21}, tensors


def qwen3() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Norms of queries and keys, which differ, and an explicit head_dim."""
    config = hf_config("head_dim") | {"model_type": "qwen3", "use_sliding_window": False}
    tensors, random = hf_tensors("head_dim"), np.random.RandomState(17)
    for layer in range(config["num_hidden_layers"]):
        for name in "qk":
            norm = random.uniform(0.5, 2.0, config["head_dim"]).astype(np.float32)
            tensors[f"model.layers.{layer}.self_attn.{name}_norm.weight"] = norm
    return config, tensors


FAMILIES = {
    "qwen3": qwen3,
    "qwen2": qwen2,
    "mistral": mistral,
    "qwen2 window": qwen2_window,
    "mistral window": mistral_window,
}


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_and_greedy_ids_equal_the_reference(tmp_path: Path, name: str) -> None:
    config, tensors = FAMILIES[name]()
    folder = write(tmp_path / "model", tensors, **config)
    llm = LLM(folder, max_model_len=200, num_blocks=40, max_num_batched_tokens=64)
    assert llm.engine.model_config.model_type == name.split()[0]
    logits = numpy_llama.forward(config, tensors, TOKENS)
    wanted = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    (found,) = llm.compute_logprobs([TOKENS])
    of_tokens = wanted[np.arange(len(TOKENS) - 1), TOKENS[1:]]
    np.testing.assert_allclose(found, of_tokens, atol=2e-4)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    (output,) = llm.generate([TOKENS[:120]], params, use_tqdm=False)
    ids = list(TOKENS[:120])
    for _ in range(6):
        ids.append(int(numpy_llama.forward(config, tensors, ids)[-1].argmax()))
    assert output.outputs[0].token_ids == ids[120:]


def test_a_qwen2_checkpoint_without_its_biases_is_refused(tmp_path: Path) -> None:
    config, tensors = qwen2()
    del tensors["model.layers.0.self_attn.k_proj.bias"]
    with pytest.raises(ValueError, match=r"missing: model\.layers\.0\.self_attn\.k_proj\.bias"):
        LLM(write(tmp_path / "model", tensors, **config))


@pytest.mark.parametrize("name", ["qwen2 window", "mistral window"])
@pytest.mark.parametrize("attention", ["xla", "pallas_interpret"])
def test_windows_with_preemption_prefix_hits_and_other_requests(
    tmp_path: Path, name: str, attention: str
) -> None:
    config, tensors = FAMILIES[name]()
    folder = write(tmp_path / "model", tensors, **config)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    prompts = [TOKENS[:60], TOKENS[:48], TOKENS[30:90], TOKENS[:60]]
    # The pool holds two of the requests, so the others wait or are preempted.
    small = LLM(
        folder, max_model_len=80, num_blocks=20, block_size=8, max_num_batched_tokens=24,
        attention=attention,
    )  # fmt: skip
    found = [each.outputs[0].token_ids for each in small.generate(prompts, params, use_tqdm=False)]
    for prompt, ids in zip(prompts, found, strict=True):
        logits = numpy_llama.forward(config, tensors, prompt + ids)[len(prompt) - 1 : -1]
        best = np.sort(logits, axis=-1)[:, -2:]
        chosen = np.take_along_axis(logits, np.array(ids)[:, None], 1)[:, 0]
        assert (chosen >= best[:, 1] - 2e-4).all()
    assert small.engine.stats().prefix_hit_tokens > 0


@pytest.mark.parametrize(
    ("changes", "windows"),
    [({"model_type": "mistral", "sliding_window": 32}, (32, 32)),
     ({"model_type": "mistral", "max_position_embeddings": 8192}, (4096, 4096)),
     ({"model_type": "mistral", "sliding_window": None}, ()),
     ({"model_type": "mistral", "sliding_window": 10**6}, ()),
     ({"model_type": "qwen2", "sliding_window": 32}, ()),
     ({"model_type": "qwen2", "sliding_window": 32, "use_sliding_window": True}, ()),
     ({"model_type": "qwen2", "sliding_window": 32, "use_sliding_window": True,
       "max_window_layers": 1}, (None, 32)),
     ({"model_type": "qwen2", "sliding_window": 32, "use_sliding_window": True,
       "layer_types": ["sliding_attention", "full_attention"], "max_window_layers": 0}, (32, None)),
     ({"model_type": "llama", "sliding_window": 32}, ())],
    ids=str,
)  # fmt: skip
def test_the_windows_of_a_config(changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    """A Mistral config without the key has Hugging Face's default window of 4096."""
    assert ModelConfig.from_hf(hf_config("base") | changes).windows == windows


@pytest.mark.parametrize(
    "changes",
    [{"sliding_window": 0}, {"sliding_window": "32"}, {"sliding_window": 1.5},
     {"layer_types": ["sliding_attention"]}, {"layer_types": ["chunked_attention"] * 2}],
    ids=str,
)  # fmt: skip
def test_an_invalid_window_is_named(changes: dict[str, Any]) -> None:
    config = hf_config("base") | {"model_type": "qwen2", "use_sliding_window": True}
    config |= {"max_window_layers": 0, "sliding_window": 32}
    (name,) = changes
    with pytest.raises(ValueError, match=f"^{name}="):
        ModelConfig.from_hf(config | changes)


def test_qwen3_has_no_default_head_dim() -> None:
    """Hugging Face's default is 128, whatever the width and the heads."""
    config = qwen3()[0]
    del config["head_dim"]
    with pytest.raises(ValueError, match="head_dim"):
        ModelConfig.from_hf(config)


@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3"])
def test_kv_heads_have_no_default_outside_llama(family: str) -> None:
    """Hugging Face's defaults are 8 and 32, whatever the number of heads."""
    config = hf_config("base") | {"model_type": family, "sliding_window": None}
    del config["num_key_value_heads"]
    with pytest.raises(ValueError, match="num_key_value_heads"):
        ModelConfig.from_hf(config)
