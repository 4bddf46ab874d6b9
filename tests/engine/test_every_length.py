"""After warm-up, prompts of any length trigger no compilation."""

from __future__ import annotations

import dataclasses
from itertools import product
from typing import Any

import pytest

from pagedjax import Engine, EngineConfig, SamplingParams
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.compilations import jax_compilations
from tests.support.engine_runs import check_all_home
from tests.support.tiny_llama import tiny
from tests.support.traffic import VOCAB

BUDGET = 317
SAMPLERS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0}, {"seed": 7}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1},
    {"repetition_penalty": 1.2}, {"presence_penalty": 0.4}, {"frequency_penalty": -0.3},
    {"logit_bias": {3: 2.0}}, {"allowed_token_ids": [4, 5, 6]}, {"bad_words": ["ab"]},
    {"min_tokens": 2, "stop_token_ids": [5]}, {"n": 2, "stop": "x"}, {"ignore_eos": True},
)  # fmt: skip


@pytest.fixture(scope="module")
def one_layer() -> Engine:
    """A warmed-up engine of one layer, whose token budget is not a power of two."""
    config, params = tiny("base")
    engine = Engine(
        dataclasses.replace(config, num_layers=1),
        {**params, "layers": params["layers"][:1]},
        EngineConfig(
            num_blocks=120, max_num_seqs=5, max_num_batched_tokens=BUDGET, max_model_len=BUDGET + 3,
            enable_prefix_caching=False,
        ),
        ByteTokenizer(),
    )  # fmt: skip
    engine.warmup()
    return engine


def serve(engine: Engine, length: int, count: int, logprobs: int | None) -> None:
    """Serve `count` prompts of one length together, cycling through SAMPLERS."""
    for index in range(count):
        sampler = SAMPLERS[(length * 5 + count + index) % len(SAMPLERS)]
        prompt = [(length + index + 7 * i) % VOCAB for i in range(length)]
        params = SamplingParams(**{"max_tokens": 2, **sampler}, logprobs=logprobs)
        engine.add_request(str(index), prompt, params)
    outputs = engine.run()
    assert len(outputs) == count
    for output in outputs:
        for each in output.outputs:
            assert 1 <= len(each.token_ids) <= 2
            assert (each.logprobs is None) == (logprobs is None)


def check_lengths(engine: Engine, cases: list[tuple[int, int, int | None]]) -> None:
    with jax_compilations() as compiled, engine.assert_no_compilation():
        for length, count, logprobs in cases:
            serve(engine, length, count, logprobs)
    assert not compiled
    check_all_home(engine)


@pytest.mark.slow
def test_no_length_up_to_an_odd_budget_compiles_anything(one_layer: Engine) -> None:
    """Each length once, with 1 to 5 sequences in turn; every second group of five has logprobs."""
    lengths = range(1, BUDGET + 1)
    cases = [(n, 1 + n % 5, (None, 0, None, 20)[n // 5 % 4]) for n in lengths]
    assert len({(count, logprobs) for _, count, logprobs in cases}) == 15
    check_lengths(one_layer, cases)


@pytest.mark.slow
def test_no_length_by_any_number_of_sequences_compiles_anything(one_layer: Engine) -> None:
    """Every length with every number of sequences, with and without logprobs."""
    check_lengths(one_layer, list(product(range(1, BUDGET + 1), range(1, 6), (None, 3))))
