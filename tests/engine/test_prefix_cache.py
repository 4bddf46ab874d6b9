"""The prefix cache through the engine: exact hits, sharing, copy on write, nothing leaks."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from pagedjax import Engine, EngineConfig, RequestOutput, SamplingParams
from tests.support.tiny_llama import finished, make_engine, tiny

SEEDED = SamplingParams(temperature=1.0, seed=11, max_tokens=12, ignore_eos=True)


def greedy(max_tokens: int, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **options)


def run_one(engine: Engine, prompt: list[int], params: SamplingParams) -> RequestOutput:
    engine.add_request("one", prompt, params)
    return engine.run()[-1]


def solo(prompt: list[int], params: SamplingParams, **options: Any) -> list[int]:
    engine = make_engine(enable_prefix_caching=False, **options)
    return run_one(engine, prompt, params).outputs[0].token_ids


def prompt_of(length: int, start: int = 0) -> list[int]:
    return [(start + 7 * i + i * i) % 120 for i in range(length)]


def check_home(engine: Engine) -> None:
    engine.scheduler.check()
    stats = engine.stats()
    assert stats.num_referenced_blocks == 0
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks


# -- hits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "block_size", "cached"),
    [(32, 16, 16), (33, 16, 32), (31, 16, 16), (16, 16, 0), (17, 16, 16), (5, 1, 4), (1, 1, 0),
     (13, 4, 12)],
)  # fmt: skip
def test_a_second_run_hits_all_but_the_last_token(
    length: int, block_size: int, cached: int
) -> None:
    engine = make_engine(block_size=block_size, num_blocks=256)
    prompt = prompt_of(length)
    first, second = (run_one(engine, prompt, greedy(4)) for _ in range(2))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, cached)
    assert second.outputs[0].token_ids == first.outputs[0].token_ids == solo(prompt, greedy(4))
    assert engine.stats().prefix_hit_tokens == cached
    assert engine.stats().prefix_query_tokens == 2 * length


def test_a_longer_prompt_hits_through_an_unbroken_chain() -> None:
    engine = make_engine()
    prompt = prompt_of(48)
    for _ in range(2):
        run_one(engine, prompt[:32], greedy(1))
    output = run_one(engine, prompt, greedy(4))
    assert output.num_cached_tokens == 32
    assert output.outputs[0].token_ids == solo(prompt, greedy(4))


def test_generated_text_is_found_too() -> None:
    engine = make_engine()
    prompt = prompt_of(20)
    answer = run_one(engine, prompt, greedy(30)).outputs[0].token_ids
    turn = prompt + answer + [3, 4, 5]
    output = run_one(engine, turn, greedy(4))
    assert output.num_cached_tokens == 48  # 20 + 30 tokens, the last without keys: 3 blocks
    assert output.outputs[0].token_ids == solo(turn, greedy(4))


def test_an_equal_second_block_under_another_first_is_no_hit() -> None:
    engine = make_engine()
    run_one(engine, prompt_of(16, 1) + prompt_of(17, 5), greedy(1))
    assert run_one(engine, prompt_of(16, 2) + prompt_of(17, 5), greedy(1)).num_cached_tokens == 0


def test_salts_separate() -> None:
    engine = make_engine()
    prompt = prompt_of(40)
    cached = [
        run_one(engine, prompt, greedy(1, cache_salt=salt)).num_cached_tokens
        for salt in (None, "a", "b", "a", None)
    ]
    assert cached == [0, 0, 0, 32, 32]


def test_off_means_off() -> None:
    engine = make_engine(enable_prefix_caching=False)
    for _ in range(2):
        assert run_one(engine, prompt_of(40), greedy(2)).num_cached_tokens == 0
    assert engine.stats().num_free_blocks == engine.stats().num_blocks


def test_a_prompt_may_hit_what_is_still_being_computed() -> None:
    """Blocks are entered when their step is planned: the next plan may hit them."""
    engine = make_engine(max_num_batched_tokens=32, steps_in_flight=1)
    prompt = prompt_of(60)
    engine.add_request("a", prompt, greedy(5))
    engine.step()
    engine.add_request("b", prompt, greedy(5))
    outputs = {each.request_id: each for each in engine.run()}
    assert outputs["b"].num_cached_tokens > 0
    expected = solo(prompt, greedy(5))
    assert [outputs[name].outputs[0].token_ids for name in "ab"] == [expected] * 2


def test_cached_blocks_are_evicted_when_the_pool_is_needed() -> None:
    engine = make_engine(num_blocks=8)
    for start in range(12):
        prompt = prompt_of(40, start)
        assert run_one(engine, prompt, greedy(20)).outputs[0].token_ids == solo(prompt, greedy(20))
    assert engine.stats().num_preemptions == 0
    check_home(engine)


def test_a_warm_run_scores_like_a_cold_one() -> None:
    """Greedy tokens after a hit come from keys that other chunks computed."""
    engine = make_engine(max_num_batched_tokens=16)
    prompt = prompt_of(100)
    cold = engine.compute_logprobs([prompt])[0]
    run_one(engine, prompt, greedy(1))
    warm = engine.compute_logprobs([prompt])[0]
    assert np.abs(cold - warm).max() < 1e-4


# -- sharing and copy on write ---------------------------------------------------------------------


def test_a_shared_partly_filled_block_is_copied_before_it_is_written() -> None:
    """Greedy and random samples of one 6-token prompt in blocks of 4 keep their own tails."""
    prompt = prompt_of(6)
    engine = make_engine(block_size=4)
    engine.add_request("g", prompt, greedy(12))
    engine.add_request("r", prompt, SEEDED)
    assert finished(engine.run()) == {"g": solo(prompt, greedy(12)), "r": solo(prompt, SEEDED)}


@pytest.mark.parametrize("steps_in_flight", [0, 1])
@pytest.mark.parametrize("length", [1, 3, 4, 6, 8])
def test_n_samples_share_the_prompt(length: int, steps_in_flight: int) -> None:
    engine = make_engine(block_size=4, steps_in_flight=steps_in_flight)
    prompt = prompt_of(length)
    params = dataclasses.replace(SEEDED, n=4)
    engine.add_request("n", prompt, params)
    shared = []
    while engine.has_unfinished_requests():
        outputs = engine.step()
        shared.append(engine.stats().num_referenced_blocks)
        engine.scheduler.check()
    assert shared[0] == -(-length // 4)  # one prompt for all four
    samples = outputs[-1].outputs
    assert [each.index for each in samples] == [0, 1, 2, 3]
    assert samples[0].token_ids == solo(prompt, SEEDED)
    assert len({tuple(each.token_ids) for each in samples}) == 4
    again = run_one(make_engine(max_num_seqs=1), prompt, params)  # one at a time
    assert [each.token_ids for each in again.outputs] == [each.token_ids for each in samples]
    check_home(engine)


def test_the_tail_block_has_as_many_references_as_samples() -> None:
    engine = make_engine(block_size=4, steps_in_flight=0)
    engine.add_request("n", prompt_of(6), dataclasses.replace(SEEDED, n=2))
    engine.step()
    tables = [request.block_ids for request in engine.scheduler.running]
    assert tables[0] == tables[1]
    assert engine.scheduler.blocks.num_refs(tables[0][1]) == 2
    engine.step()
    tables = [request.block_ids for request in engine.scheduler.running]
    assert tables[0][0] == tables[1][0]
    assert tables[0][1] != tables[1][1]


def test_n_samples_are_different_and_reproducible_on_flat_logits() -> None:
    config, params = tiny("base")
    flat = {**params, "head": params["head"] * 0}
    params_n = SamplingParams(n=4, seed=42, max_tokens=20, ignore_eos=True)

    def four() -> list[list[int]]:
        engine = Engine(config, flat, EngineConfig(num_blocks=64, max_num_seqs=8))
        return [each.token_ids for each in run_one(engine, [1, 2], params_n).outputs]

    assert len({tuple(ids) for ids in four()}) == 4
    assert four() == four()


def test_a_small_pool_does_not_change_n_samples() -> None:
    params = SamplingParams(n=4, seed=3, max_tokens=30, ignore_eos=True)
    prompt = prompt_of(10)
    large = run_one(make_engine(block_size=4), prompt, params)
    engine = make_engine(block_size=4, num_blocks=14)
    small = run_one(engine, prompt, params)
    assert engine.stats().num_preemptions > 0
    assert [x.token_ids for x in small.outputs] == [x.token_ids for x in large.outputs]
    check_home(engine)


# -- fork and rollback -----------------------------------------------------------------------------


@pytest.mark.parametrize("steps_in_flight", [0, 1])
@pytest.mark.parametrize("steps", [1, 4, 7])
def test_a_fork_goes_on_from_the_present_token(steps: int, steps_in_flight: int) -> None:
    prompt = prompt_of(6)
    engine = make_engine(block_size=4, steps_in_flight=steps_in_flight)
    engine.add_request("parent", prompt, SEEDED)
    outputs = [output for _ in range(steps) for output in engine.step()]
    engine.fork("parent", ["same", "other"], seeds=[11, 12])
    at_fork = len(engine._transcripts["parent"].samples[0].output_ids)
    engine.scheduler.check()
    outputs += engine.run()
    done = finished(outputs)
    assert at_fork >= steps - steps_in_flight
    assert done["parent"] == solo(prompt, SEEDED)
    assert done["same"] == done["parent"]
    assert done["other"][:at_fork] == done["parent"][:at_fork]
    assert done["other"] != done["parent"]
    check_home(engine)


def test_a_fork_shares_every_block() -> None:
    engine = make_engine(block_size=4, steps_in_flight=0)
    engine.add_request("a", prompt_of(29), greedy(12))
    for _ in range(3):
        engine.step()
    before = engine.stats().num_referenced_blocks
    engine.fork("a", ["b", "c"])
    assert engine.stats().num_referenced_blocks == before
    engine.step()
    assert engine.stats().num_referenced_blocks <= before + 2


@pytest.mark.parametrize("when", ["waiting", "in prefill"])
def test_a_fork_of_a_request_without_a_token_waits(when: str) -> None:
    engine = make_engine(max_num_batched_tokens=16)
    engine.add_request("a", prompt_of(50), SEEDED)
    if when == "in prefill":
        engine.step()
    engine.fork("a", ["b"], seeds=[11])
    expected = solo(prompt_of(50), SEEDED)
    assert finished(engine.run()) == {"a": expected, "b": expected}


@pytest.mark.parametrize("steps_in_flight", [0, 1])
@pytest.mark.parametrize("dropped", [1, 3, 8])
def test_rollback_repeats_the_same_tokens(dropped: int, steps_in_flight: int) -> None:
    prompt = prompt_of(7)
    engine = make_engine(block_size=4, steps_in_flight=steps_in_flight)
    engine.add_request("a", prompt, SEEDED)
    while len(engine._transcripts["a"].samples[0].output_ids) < 8:
        engine.step()
    engine.rollback("a", dropped)
    engine.scheduler.check()
    outputs = engine.run()
    assert finished(outputs)["a"] == solo(prompt, SEEDED)
    check_home(engine)


def test_deltas_after_a_rollback_bring_what_was_not_seen() -> None:
    """The token that the rollback itself reads is never reported, nor are those that it drops."""
    engine = make_engine(block_size=4, steps_in_flight=1)
    engine.add_request("a", prompt_of(6), SEEDED)
    seen: list[int] = []
    while len(seen) < 5:
        for output in engine.step():
            seen += output.outputs[0].delta_token_ids
    engine.rollback("a", 3)  # of 6, one of them in flight
    seen = seen[:3]
    for output in (each for _ in range(50) for each in engine.step()):
        seen += output.outputs[0].delta_token_ids
        assert seen == output.outputs[0].token_ids
    assert output.finished


def test_rollback_leaves_cached_blocks_as_they_were() -> None:
    """A cached block is copied before a rolled back request writes into it again."""
    prompt = prompt_of(8)
    engine = make_engine(block_size=4, steps_in_flight=0)
    engine.add_request("a", prompt, SEEDED)
    for _ in range(9):
        engine.step()
    first = engine._transcripts["a"].samples[0].output_ids[:8]
    engine.fork("a", ["b"], seeds=[99])
    engine.rollback("b", 6)
    done = finished(engine.run())
    assert done["a"] == solo(prompt, SEEDED)
    turn = prompt + first + [1]
    assert run_one(engine, turn, greedy(4)).outputs[0].token_ids == solo(turn, greedy(4))


def test_bad_forks_and_rollbacks_are_refused() -> None:
    engine = make_engine()
    engine.add_request("a", [1, 2], greedy(9))
    engine.add_request("n", [1, 2], greedy(9, n=2))
    engine.step()
    for call, message in (
        (lambda: engine.fork("x", ["y"]), "no live request has the id 'x'"),
        (lambda: engine.fork("a", ["n"]), "new, different ids"),
        (lambda: engine.fork("a", ["b", "b"]), "new, different ids"),
        (lambda: engine.fork("a", ["b"], seeds=[1, 2]), "2 seeds for 1 children"),
        (lambda: engine.fork("a", ["b"], seeds=[-1]), "seed=-1"),
        (lambda: engine.fork("n", ["b"]), "n=2"),
        (lambda: engine.rollback("x", 1), "no live request"),
        (lambda: engine.rollback("a", 99), "num_tokens=99"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    engine.run()
    check_home(engine)


# -- weights ---------------------------------------------------------------------------------------


def test_new_weights_never_hit_old_keys() -> None:
    config, params = tiny("base")
    other = jax.tree.map(lambda leaf: leaf * 1.5, params)
    engine = make_engine()
    prompt = prompt_of(33)
    run_one(engine, prompt, greedy(6))
    engine.update_params(other)
    output = run_one(engine, prompt, greedy(6))
    fresh = Engine(config, other, EngineConfig(num_blocks=64, max_num_seqs=8))
    assert output.num_cached_tokens == 0
    assert output.outputs[0].token_ids == run_one(fresh, prompt, greedy(6)).outputs[0].token_ids
    engine.update_params(params, keep_prefix_cache=True)  # the waiver
    assert run_one(engine, prompt, greedy(6)).num_cached_tokens == 32


def test_a_request_that_spans_an_update_enters_nothing() -> None:
    engine = make_engine(block_size=4)
    engine.add_request("a", prompt_of(10), greedy(20))
    for _ in range(4):
        engine.step()
    engine.update_params(jax.tree.map(lambda leaf: leaf * 1.5, tiny("base")[1]))
    done = finished(engine.run())["a"]
    output = run_one(engine, prompt_of(10) + done, greedy(1))
    assert output.num_cached_tokens == 0


def test_reset_prefix_cache_forgets() -> None:
    engine = make_engine()
    run_one(engine, prompt_of(40), greedy(2))
    engine.reset_prefix_cache()
    assert engine.stats().num_free_blocks == engine.stats().num_blocks
    assert run_one(engine, prompt_of(40), greedy(2)).num_cached_tokens == 0


# -- preemption and leaks --------------------------------------------------------------------------


def test_two_requests_that_force_a_preemption_equal_a_large_pool() -> None:
    prompts = {"a": prompt_of(34), "b": prompt_of(34, 9)}
    outputs = []
    for num_blocks in (7, 20):
        engine = make_engine(num_blocks=num_blocks)
        for name, prompt in prompts.items():
            engine.add_request(name, prompt, greedy(35))
        outputs.append(finished(engine.run(max_steps=400)))
        assert (engine.stats().num_preemptions > 0) == (num_blocks == 7)
        check_home(engine)
    assert outputs[0] == outputs[1]


def test_progress_is_guaranteed_in_a_pool_for_one() -> None:
    prompts = [prompt_of(8, start) for start in (0, 3, 50)]
    engine = make_engine(num_blocks=5, block_size=4, steps_in_flight=0)
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), prompt, greedy(8))
    outputs = finished(engine.run(max_steps=3 * 3 * 9))
    assert outputs == {str(i): solo(p, greedy(8)) for i, p in enumerate(prompts)}
    check_home(engine)


@pytest.mark.parametrize("steps_in_flight", [0, 1])
@pytest.mark.parametrize("how", ["finish", "waiting", "prefill", "decode", "n", "preempted"])
def test_every_block_comes_home(how: str, steps_in_flight: int) -> None:
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
    check_home(engine)


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
    """Random lengths, shared prefixes, aborts at random moments, a small pool."""
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
    check_home(engine)
