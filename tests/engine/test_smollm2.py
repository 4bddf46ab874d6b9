"""Greedy ids of SmolLM2-135M in float32, compared with Hugging Face.

Where Hugging Face's two best logits differ by less than 1e-3, either token is accepted and the
comparison of that request stops there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagedjax import LLM, Engine, EngineConfig, SamplingParams
from tests.support.tiny_llama import finished

GOLDENS = Path(__file__).parents[1] / "goldens"
REQUESTS = json.loads((GOLDENS / "smollm2_greedy.json").read_text())["requests"]
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
CLEAR_GAP = 1e-3


@pytest.fixture(scope="module")
def llm(smollm2_gguf: Path) -> Iterator[LLM]:
    yield LLM(
        smollm2_gguf, dtype="float32", num_blocks=192, max_model_len=2048, max_num_seqs=8,
        max_num_batched_tokens=128,
    )  # fmt: skip


def check_ids(golden: dict[str, Any], ids: list[int]) -> None:
    gaps = golden["top2_gap"]
    end = next((i for i, gap in enumerate(gaps) if gap < CLEAR_GAP), len(gaps))
    assert ids[:end] == golden["output"][:end]
    assert len(ids) == len(golden["output"])


def test_the_golden_file_has_its_documented_size() -> None:
    compared = [r for r in REQUESTS if min(r["top2_gap"]) >= CLEAR_GAP and len(r["output"]) == 40]
    assert len(compared) >= 10


@pytest.mark.parametrize(
    "batch, steps_in_flight",
    [
        (8, 1),
        *[pytest.param(batch, 0, marks=pytest.mark.slow) for batch in (1, 2, 4, 8)],
        *[pytest.param(batch, 1, marks=pytest.mark.slow) for batch in (1, 2, 4)],
    ],
)
def test_greedy_ids_equal_hugging_face(llm: LLM, batch: int, steps_in_flight: int) -> None:
    """In batches of prompts of different lengths."""
    engine = llm.engine
    engine.config = EngineConfig(**{**vars(engine.config), "steps_in_flight": steps_in_flight})
    for first in range(0, len(REQUESTS), batch):
        group = REQUESTS[first : first + batch]
        for index, golden in enumerate(group):
            engine.add_request(str(index), golden["prompt"], GREEDY)
        outputs = finished(engine.run())
        for index, golden in enumerate(group):
            check_ids(golden, outputs[str(index)])
    assert engine.stats().num_referenced_blocks == 0


@pytest.mark.slow
def test_a_small_pool_gives_the_same_ids(llm: LLM) -> None:
    config = EngineConfig(
        num_blocks=40, max_model_len=512, max_num_seqs=8, max_num_batched_tokens=64
    )
    engine = Engine(llm.engine.model_config, llm.engine.params, config)
    group = [r for r in REQUESTS if len(r["prompt"]) < 440]
    for index, golden in enumerate(group):
        engine.add_request(str(index), golden["prompt"], GREEDY)
    outputs = finished(engine.run())
    assert engine.stats().num_preemptions > 0
    for index, golden in enumerate(group):
        check_ids(golden, outputs[str(index)])
    assert engine.stats().num_referenced_blocks == 0


def test_chat_answers_and_stops(llm: LLM) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    params = SamplingParams(temperature=0, max_tokens=40)
    output = llm.chat(question, params, use_tqdm=False)[0].outputs[0]
    assert output.text == "The capital of France is Paris."
    assert (output.finish_reason, output.token_ids[-1]) == ("stop", 2)
    streamed = list(llm.stream(llm.encode_chat(question), params))
    assert "".join(each.outputs[0].delta_text for each in streamed) == output.text
    assert streamed[-1].finished


@pytest.mark.slow
def test_streamed_text_equals_the_one_shot_decode(llm: LLM) -> None:
    params = SamplingParams(temperature=1.5, seed=7, max_tokens=48, ignore_eos=True)
    outputs = list(llm.stream("Emoji and 漢字 follow: 🌶 é 你", params))
    text = "".join(each.outputs[0].delta_text for each in outputs)
    last = outputs[-1].outputs[0]
    assert text == last.text
    assert text == llm.engine.tokenizer.decode(last.token_ids, skip_special_tokens=True)
