"""Seeded draws depend on seed, sample and position alone, wherever a request runs."""

from __future__ import annotations

import dataclasses
from functools import cache

import jax

from pagedjax import Engine, EngineConfig, SamplingParams, init_params
from tests.support.engine_runs import PROMPT
from tests.support.tiny_llama import finished, make_engine, tiny

SEEDED = SamplingParams(temperature=1.0, seed=42, max_tokens=12, ignore_eos=True)
UNSEEDED = dataclasses.replace(SEEDED, seed=None, max_tokens=16)


@cache
def roomy() -> Engine:
    """An engine with room for every request."""
    return make_engine(enable_prefix_caching=False)


@cache
def cramped() -> Engine:
    """An engine whose pool cannot hold two requests and whose prompts take several steps."""
    return make_engine(num_blocks=4, block_size=8, max_num_batched_tokens=3)


def seeded_beside(engine: Engine, neighbours: int) -> tuple[list[int], set[int], set[int]]:
    """Token ids of a seeded request, the slots it had, and the numbers of running requests."""
    for index in range(neighbours):
        engine.add_request(f"n{index}", [index + 1] * (3 + index), UNSEEDED)
    if neighbours:
        engine.step()
    engine.add_request("seeded", PROMPT, SEEDED)
    outputs, slots, sizes = [], set(), set()
    while engine.has_unfinished_requests():
        outputs += engine.step()
        running = engine.scheduler.running
        mine = [each.slot for each in running if each.id == "seeded"]
        slots |= set(mine)
        sizes |= {len(running)} if mine else set()
    return finished(outputs)["seeded"], slots, sizes


def test_seed_42_gives_the_same_ids_wherever_it_runs() -> None:
    """Alone, beside unseeded requests, in other slots, in larger batches, in chunks, and
    after preemption."""
    alone, slots, sizes = seeded_beside(roomy(), 0)
    assert (slots, sizes) == ({0}, {1})
    for neighbours, slot in ((1, 1), (2, 2), (5, 5)):
        ids, slots, sizes = seeded_beside(roomy(), neighbours)
        assert slots == {slot} and max(sizes) == neighbours + 1
        assert ids == alone
    engine = cramped()
    assert seeded_beside(engine, 0)[0] == alone, "in chunks"
    before = engine.stats().num_preemptions
    assert seeded_beside(engine, 1)[0] == alone, "after preemption"
    assert engine.stats().num_preemptions > before
    engine = roomy()
    engine.add_request("other", PROMPT, dataclasses.replace(SEEDED, seed=43))
    assert finished(engine.run())["other"] != alone


def test_draws_depend_on_seed_sample_and_position_alone() -> None:
    """Four samples, seed 42, equal logits over 1000 tokens. The draws do not depend on the
    prompt, the batch or the request id."""
    config = dataclasses.replace(tiny("base")[0], vocab_size=1000, num_layers=1)
    params = init_params(config, jax.random.key(0), "float32")
    flat = {**params, "head": params["head"] * 0}
    engine = Engine(config, flat, EngineConfig(num_blocks=64, max_num_seqs=8))
    four = SamplingParams(n=4, seed=42, max_tokens=20, ignore_eos=True)

    def samples(prompt: list[int], params: SamplingParams) -> list[list[int]]:
        engine.add_request(str(len(prompt)), prompt, params)
        output = engine.run()[-1]
        return [each.token_ids for each in output.outputs]

    first = samples([1, 2], four)
    assert len({tuple(ids) for ids in first}) == 4
    assert len({token for ids in first for token in ids}) > 60  # of 80 draws
    assert samples([1, 2], four) == first
    assert samples([900] * 37, four) == first
    assert samples([5], dataclasses.replace(four, n=1)) == first[:1]
    engine.add_request("neighbour", [3], UNSEEDED)
    assert samples([7, 7, 7], four) == first
    assert samples([1, 2], dataclasses.replace(four, seed=41)) != first
