"""Teacher-forced logprobs of a real checkpoint against Hugging Face, cold and after prefix hits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pagedjax import Engine, EngineConfig, ModelConfig, SamplingParams, load_checkpoint, models
from pagedjax.params import Params

GOLDENS = Path(__file__).parent / "goldens"


@pytest.fixture(scope="module")
def model(smollm2_gguf: Path) -> tuple[ModelConfig, Params]:
    return load_checkpoint(smollm2_gguf, dtype="float32")[:2]


@pytest.mark.parametrize("budget", [64, 256, 2048])
def test_logprobs_of_1500_tokens_equal_hugging_face(
    model: tuple[ModelConfig, Params], budget: int
) -> None:
    golden = np.load(GOLDENS / "smollm2_logprobs.npz")
    config = EngineConfig(
        num_blocks=100, max_model_len=2048, max_num_seqs=1, max_num_batched_tokens=budget
    )
    engine = Engine(*model, config)
    scores = engine.compute_logprobs([golden["tokens"]])[0]
    assert scores.dtype == np.float32
    assert scores.shape == (1499,)
    assert np.abs(scores - golden["logprobs"]).max() < 1e-3


def test_logprobs_after_a_prefix_hit_equal_the_cold_run(model: tuple[ModelConfig, Params]) -> None:
    """1,024 of 1,040 tokens come from the cache; the next token's logprobs stay as they were."""
    prompt = np.load(GOLDENS / "smollm2_logprobs.npz")["tokens"][:1040].tolist()
    config = EngineConfig(
        num_blocks=100, max_model_len=2048, max_num_seqs=1, max_num_batched_tokens=256
    )
    engine = Engine(*model, config)
    seen: list[jax.Array] = []
    sample = engine._runner._programs.sample

    def watched(params: Params, state: Any, hidden: jax.Array, *rest: Any) -> Any:
        seen.append(models.family("llama").logits(model[0], params, hidden[:1]))
        return sample(params, state, hidden, *rest)

    engine._runner._programs.sample = watched  # type: ignore[method-assign]
    for _ in range(2):
        engine.add_request("a", prompt, SamplingParams(temperature=0, max_tokens=1))
        output = engine.run()[0]
    assert output.num_cached_tokens == 1024
    cold, warm = (jax.nn.log_softmax(logits) for logits in seen)
    assert float(abs(cold - warm).max()) < 1e-4
