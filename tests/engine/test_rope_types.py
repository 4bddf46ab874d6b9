"""Every rope type through the engine against the naive reference, past the original context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedjax import LLM, SamplingParams
from tests.support import numpy_llama
from tests.support.hf_folders import write
from tests.support.tiny_models import hf_config, hf_tensors

TOKENS = np.random.RandomState(5).randint(0, 128, 150).tolist()
ROPES = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    "yarn": {
        "rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0,
        "original_max_position_embeddings": 64,
    },
    "yarn with all": {
        "rope_type": "yarn", "factor": 8.0, "rope_theta": 5000.0, "attention_factor": 1.3,
        "original_max_position_embeddings": 48, "beta_fast": 8.0, "beta_slow": 0.5,
        "truncate": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", ROPES)
def test_logits_equal_the_reference_past_the_original_context(tmp_path: Path, kind: str) -> None:
    config: dict[str, Any] = hf_config("base") | {"rope_parameters": ROPES[kind]}
    config.pop("rope_scaling", None)
    folder = write(tmp_path / "model", hf_tensors("base"), **config)
    llm = LLM(folder, max_model_len=200, num_blocks=40, max_num_batched_tokens=64)
    logits = numpy_llama.forward(config, hf_tensors("base"), TOKENS)
    wanted = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    (found,) = llm.compute_logprobs([TOKENS])
    of_tokens = wanted[np.arange(len(TOKENS) - 1), TOKENS[1:]]
    np.testing.assert_allclose(found, of_tokens, atol=2e-4)
    (output,) = llm.generate([TOKENS], SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
    assert output.outputs[0].token_ids == [int(wanted[-1].argmax())]
    plain = numpy_llama.forward(hf_config("base"), hf_tensors("base"), TOKENS)
    assert np.abs(plain - logits).max() > 0.05  # the type matters
