"""Preemption changes no token, and every block is returned to the pool."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.engine_runs import check_all_home, greedy, prompt_of, run_one, solo
from tests.support.tiny_llama import finished, make_engine


def test_two_requests_that_force_a_preemption_equal_a_large_pool() -> None:
    prompts = {"a": prompt_of(34), "b": prompt_of(34, 9)}
    outputs = []
    for num_blocks in (7, 20):
        engine = make_engine(num_blocks=num_blocks)
        for name, prompt in prompts.items():
            engine.add_request(name, prompt, greedy(35))
        outputs.append(finished(engine.run(max_steps=400)))
        assert (engine.stats().num_preemptions > 0) == (num_blocks == 7)
        check_all_home(engine)
    assert outputs[0] == outputs[1]


def test_progress_is_guaranteed_in_a_pool_for_one_request() -> None:
    prompts = [prompt_of(8, start) for start in (0, 3, 50)]
    engine = make_engine(num_blocks=5, block_size=4, steps_in_flight=0)
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), prompt, greedy(8))
    outputs = finished(engine.run(max_steps=3 * 3 * 9))
    assert outputs == {str(i): solo(p, greedy(8)) for i, p in enumerate(prompts)}
    check_all_home(engine)


@pytest.mark.parametrize("steps_in_flight", [0, 1])
@pytest.mark.parametrize("how", ["finish", "waiting", "prefill", "decode", "n", "preempted"])
def test_every_block_is_returned(how: str, steps_in_flight: int) -> None:
    engine = make_engine(
        num_blocks=10, block_size=4, max_num_batched_tokens=8, steps_in_flight=steps_in_flight
    )
    engine.add_request("other", prompt_of(6), greedy(20))
    engine.add_request("a", prompt_of(17, 4), greedy(9, n=2 if how == "n" else 1))
    steps = {"finish": 200, "waiting": 0, "prefill": 2, "decode": 5, "n": 5, "preempted": 9}[how]
    for _ in range(steps):
        engine.step()
        engine.scheduler.check()
    engine.abort_request("a")
    engine.scheduler.check()
    engine.run()
    check_all_home(engine)


def test_the_newest_is_preempted_and_its_keys_are_found_again() -> None:
    engine = make_engine(num_blocks=12, block_size=4)
    engine.add_request("old", prompt_of(16), greedy(24))
    engine.add_request("new", prompt_of(16, 5), greedy(24))
    outputs = finished(engine.run(max_steps=300))
    assert engine.stats().num_preemptions > 0
    assert outputs["new"] == solo(prompt_of(16, 5), greedy(24))
    assert outputs["old"] == solo(prompt_of(16), greedy(24))


@pytest.mark.parametrize("steps_in_flight", [0, 1])
def test_a_soak_of_random_requests_and_aborts(steps_in_flight: int) -> None:
    check_soak(num_requests=120, steps_in_flight=steps_in_flight)


@pytest.mark.slow
@pytest.mark.parametrize("steps_in_flight", [0, 1])
def test_a_long_soak(steps_in_flight: int) -> None:
    check_soak(num_requests=2000, steps_in_flight=steps_in_flight)


def check_soak(num_requests: int, steps_in_flight: int) -> None:
    """Run requests of random lengths with shared prefixes and random aborts in a small pool."""
    random = np.random.RandomState(steps_in_flight)
    jobs = {}
    for index in range(num_requests):
        prompt = prompt_of(int(random.randint(0, 20)), int(random.randint(3)))
        prompt += [int(token) for token in random.randint(0, 120, random.randint(1, 12))]
        jobs[f"r{index}"] = (prompt, greedy(int(random.randint(1, 14))))
    engine = make_engine(
        num_blocks=24, block_size=4, steps_in_flight=steps_in_flight, max_num_batched_tokens=32
    )
    todo, outputs, aborted, steps = list(jobs), {}, set(), 0
    while todo or engine.has_unfinished_requests():
        while todo and random.rand() < 0.5:
            name = todo.pop(0)
            engine.add_request(name, *jobs[name])
        if random.rand() < 0.04:
            name = f"r{random.randint(num_requests)}"
            if engine.abort_request(name):
                aborted.add(name)
        outputs |= finished(engine.step())
        engine.scheduler.check()
        steps += 1
    assert steps < 20 * num_requests
    assert outputs.keys() == jobs.keys() - aborted
    solos = make_engine(enable_prefix_caching=False, num_blocks=64, block_size=4, max_num_seqs=1)
    for name, ids in outputs.items():
        assert run_one(solos, *jobs[name]).outputs[0].token_ids == ids, name
    check_all_home(engine)
