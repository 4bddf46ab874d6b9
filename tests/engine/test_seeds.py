"""Seeded and unseeded sampling through the engine."""

from __future__ import annotations

import dataclasses

import pytest

from pagedjax import LLM, Engine, SamplingParams
from tests.support.engine_runs import PROMPT, greedy, solo
from tests.support.tiny_llama import GREEDY, finished, make_engine

pytestmark = pytest.mark.usefixtures("attention")

SEEDED = SamplingParams(temperature=1.0, seed=42, max_tokens=12, ignore_eos=True, top_p=0.95)


@pytest.mark.parametrize("steps_in_flight", [0, 1])
@pytest.mark.parametrize("neighbours", [0, 1, 5])
def test_a_seeded_request_is_the_same_beside_others(neighbours: int, steps_in_flight: int) -> None:
    engine = make_engine(steps_in_flight=steps_in_flight)
    for index in range(neighbours):  # they take the lower slots and finish at different steps
        params = SamplingParams(temperature=0.7, max_tokens=3 + 4 * index, ignore_eos=True)
        engine.add_request(f"n{index}", [index + 1] * (3 + index), params)
    if neighbours:
        engine.step()
    engine.add_request("seeded", PROMPT, SEEDED)
    assert finished(engine.run())["seeded"] == solo(PROMPT, SEEDED)


def test_a_seeded_request_is_the_same_after_preemption_and_in_chunks() -> None:
    engine = make_engine(num_blocks=4, block_size=8, max_num_batched_tokens=3)
    engine.add_request("first", [1, 2, 3, 4], greedy(20))
    engine.add_request("seeded", PROMPT, SEEDED)
    outputs = finished(engine.run(max_steps=500))
    assert engine.stats().num_preemptions > 0
    assert outputs["seeded"] == solo(PROMPT, SEEDED)


def test_seeds_differ_and_are_reproducible_when_not_given() -> None:
    params = dataclasses.replace(SEEDED, seed=None)

    def three(seed: int) -> dict[str, list[int]]:
        engine = make_engine(seed=seed)
        for name in "abc":
            engine.add_request(name, PROMPT, params)
        return finished(engine.run())

    first = three(0)
    assert len({tuple(ids) for ids in first.values()}) == 3
    assert first == three(0)
    assert first != three(1)


def test_greedy_beside_random_rows_stays_greedy() -> None:
    engine = make_engine()
    engine.add_request("greedy", PROMPT, GREEDY)
    engine.add_request("random", PROMPT, SamplingParams(temperature=5.0, max_tokens=16))
    assert finished(engine.run())["greedy"] == solo(PROMPT, GREEDY)


def test_a_refused_request_changes_no_seed() -> None:
    def drawn(engine: Engine) -> dict[str, list[int]]:
        engine.add_request("a", PROMPT, SamplingParams(max_tokens=8, ignore_eos=True))
        return finished(engine.run())

    engine = make_engine()
    with pytest.raises(ValueError, match="empty"):
        engine.add_request("bad", [])
    with pytest.raises(ValueError, match="token list 1: .* is empty"):
        engine.compute_logprobs([[1, 2], []])
    llm = LLM.from_params(engine.model_config, engine.params)
    llm.engine = engine
    with pytest.raises(ValueError, match="prompt 1: .* is empty"):
        llm.generate([[1], []])
    with pytest.raises(ValueError, match="is empty"):
        llm.beam_search([[1], []], beam_width=2, max_tokens=2)
    assert drawn(engine) == drawn(make_engine())
