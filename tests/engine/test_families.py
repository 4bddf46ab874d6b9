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


FAMILIES = {"qwen2": qwen2, "mistral": mistral}


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_and_greedy_ids_equal_the_reference(tmp_path: Path, name: str) -> None:
    config, tensors = FAMILIES[name]()
    folder = write(tmp_path / "model", tensors, **config)
    llm = LLM(folder, max_model_len=200, num_blocks=40, max_num_batched_tokens=64)
    assert llm.engine.model_config.model_type == name
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


@pytest.mark.parametrize(
    "changes",
    [{"model_type": "mistral", "sliding_window": 32},
     {"model_type": "mistral", "max_position_embeddings": 8192},  # the default window is 4096
     {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 32,
      "max_window_layers": 1},
     {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 32,
      "layer_types": ["full_attention", "sliding_attention"]}],
    ids=str,
)  # fmt: skip
def test_a_window_smaller_than_the_context_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match="sliding_window=.* is smaller than the context"):
        ModelConfig.from_hf(hf_config("base") | changes)


@pytest.mark.parametrize(
    "changes",
    [{"model_type": "mistral"}, {"model_type": "mistral", "sliding_window": 10**6},
     {"model_type": "qwen2", "sliding_window": 32},
     {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 32,
      "max_window_layers": 9},
     {"model_type": "llama", "sliding_window": 32}],
    ids=str,
)  # fmt: skip
def test_a_window_that_no_layer_has_or_that_covers_the_context_is_accepted(
    changes: dict[str, Any],
) -> None:
    assert ModelConfig.from_hf(hf_config("base") | changes).model_type == changes["model_type"]


@pytest.mark.parametrize("family", ["mistral", "qwen2"])
def test_kv_heads_have_no_default_outside_llama(family: str) -> None:
    """Hugging Face's defaults are 8 and 32, whatever the number of heads."""
    config = hf_config("base") | {"model_type": family, "sliding_window": None}
    del config["num_key_value_heads"]
    with pytest.raises(ValueError, match="num_key_value_heads"):
        ModelConfig.from_hf(config)
