"""Expected greedy tokens of the tiny model from a float64 forward pass, and engine runs."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from pagedjax import SamplingParams
from tests.support import numpy_llama
from tests.support.tiny_llama import make_engine
from tests.support.tiny_models import hf_config, hf_tensors

PROMPT = [8, 17, 55, 3, 52, 17, 8, 8]
VOCAB = 128


def logits_after(tokens: list[int]) -> np.ndarray:  # [V] float64
    return numpy_llama.forward(hf_config("base"), hf_tensors("base"), tokens)[-1]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def greedy(max_tokens: int = 6, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, **{"ignore_eos": True, **options})


def expected(edit: Any, max_tokens: int = 6) -> list[int]:
    """Greedy ids after PROMPT if `edit(logits, output)` changes the logits of every step."""
    output: list[int] = []
    for _ in range(max_tokens):
        output.append(int(np.argmax(edit(logits_after(PROMPT + output), output))))
    return output


def run(engine: Any, **requests: SamplingParams) -> dict[str, Any]:
    for name, params in requests.items():
        engine.add_request(name, PROMPT, params)
    return {each.request_id: each for each in engine.run()}


@cache
def engine_of(steps_in_flight: int = 1) -> Any:
    """One engine for all tests that need no options of their own, so that it compiles once."""
    return make_engine(steps_in_flight=steps_in_flight)


def ids(outputs: dict[str, Any], name: str = "a") -> list[int]:
    return outputs[name].outputs[0].token_ids
