"""Logprobs of SmolLM2-135M in float32: of given texts, compared with Hugging Face, in chunks of any
size, with a cold and a warm cache; and of sampled tokens, compared with the same tokens scored."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pagedjax import Engine, EngineConfig, ModelConfig, SamplingParams, load_checkpoint
from pagedjax.step.forward import logits_of
from pagedjax.weights.params import Params

GOLDEN = np.load(Path(__file__).parents[1] / "goldens" / "smollm2_logprobs.npz")
TOKENS = GOLDEN["tokens"].tolist()
T = 16  # of EngineConfig.block_size


@pytest.fixture(scope="module")
def model(smollm2_gguf: Path) -> tuple[ModelConfig, Params]:
    return load_checkpoint(smollm2_gguf, dtype="float32")[:2]


@pytest.fixture(scope="module")
def engine_of(model: tuple[ModelConfig, Params]) -> Callable[[int], Engine]:
    """Engines by token budget, each made once because compiling dominates the tests' time.

    With two rows, the second of two lists fits into the last step of the first and adds no batch
    shape.
    """

    @cache
    def make(budget: int) -> Engine:
        config = EngineConfig(
            num_blocks=200, block_size=T, max_model_len=2048, max_num_seqs=2,
            max_num_batched_tokens=budget,
        )  # fmt: skip
        return Engine(*model, config)

    return make


@pytest.mark.parametrize(
    ("budget", "length"),
    [
        (T + 1, 5 * T + 4),
        # One step per token, and one step per block.
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, 2 * T + 4), (T, 5 * T + 4))),
        *(
            pytest.param(each, 1500, marks=pytest.mark.slow)
            for each in (1, T, T + 1, 64, 256, 2048)
        ),
    ],
)
def test_logprobs_equal_hugging_face(
    engine_of: Callable[[int], Engine], budget: int, length: int
) -> None:
    """Scored lists and prompts; the second time, their keys are in the prefix cache."""
    engine, tokens, wanted = engine_of(budget), TOKENS[:length], GOLDEN["logprobs"][: length - 1]
    engine.reset_prefix_cache()
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    for name in ("cold", "warm"):
        first, second = engine.compute_logprobs([tokens, tokens[:-3]])  # the second shares a prefix
        assert first.dtype == np.float32
        np.testing.assert_allclose(first, wanted, rtol=0, atol=5e-4)
        np.testing.assert_allclose(second, wanted[:-3], rtol=0, atol=5e-4)
        engine.add_request(name, tokens, params)
        nothing, *found = engine.run()[0].prompt_logprobs
        assert nothing is None
        ours = [each[token].logprob for each, token in zip(found, tokens[1:], strict=True)]
        np.testing.assert_allclose(ours, wanted, rtol=0, atol=5e-4)


@pytest.mark.slow
def test_sampled_logprobs_equal_scored_ones(engine_of: Callable[[int], Engine]) -> None:
    """Logprobs of decode steps, compared with those of prefill chunks."""
    engine, prompts = engine_of(T), {"a": TOKENS[:9], "b": TOKENS[100:137]}
    for seed, (name, prompt) in enumerate(prompts.items()):
        params = SamplingParams(
            temperature=0.8, seed=seed, max_tokens=40, ignore_eos=True, logprobs=0
        )
        engine.add_request(name, prompt, params)
    outputs = {each.request_id: each.outputs[0] for each in engine.run()}
    lists = [prompt + outputs[name].token_ids for name, prompt in prompts.items()]
    for (name, prompt), scores in zip(prompts.items(), engine.compute_logprobs(lists), strict=True):
        found = outputs[name]
        sampled = [
            each[token].logprob for each, token in zip(found.logprobs, found.token_ids, strict=True)
        ]
        assert len(sampled) == 40
        np.testing.assert_allclose(sampled, scores[len(prompt) - 1 :], rtol=0, atol=1e-4)


@pytest.mark.slow
def test_logprobs_after_a_prefix_hit_equal_the_cold_run(
    engine_of: Callable[[int], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,024 of 1,040 tokens come from the cache; the next token's logprobs do not change."""
    engine = engine_of(256)
    engine.reset_prefix_cache()
    seen: list[jax.Array] = []
    programs = engine._runner._programs
    sample = programs.sample

    def watched(variant: Any, params: Params, state: Any, hidden: jax.Array, *rest: Any) -> Any:
        logits = logits_of(engine._runner._step_config, params, hidden[:1])
        seen.append(jax.nn.log_softmax(logits))
        return sample(variant, params, state, hidden, *rest)

    monkeypatch.setattr(programs, "sample", watched)
    for _ in range(2):
        engine.add_request("a", TOKENS[:1040], SamplingParams(temperature=0, max_tokens=1))
        output = engine.run()[0]
    assert output.num_cached_tokens == 1024
    cold, warm = seen
    assert float(abs(cold - warm).max()) < 1e-4
