"""Blocks shared by samples and forks: copy on write, and rollback."""

from __future__ import annotations

import dataclasses

import pytest

from pagedjax import Engine, EngineConfig, SamplingParams
from tests.support.engine_runs import check_all_home, greedy, prompt_of, run_one, solo
from tests.support.tiny_llama import finished, make_engine, tiny

SEEDED = SamplingParams(temperature=1.0, seed=11, max_tokens=12, ignore_eos=True)


def test_a_shared_partly_filled_block_is_copied_before_it_is_written() -> None:
    """A greedy and a random request with one 6-token prompt in blocks of 4."""
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
    assert shared[0] == -(-length // 4)  # all four samples share the prompt's blocks
    samples = outputs[-1].outputs
    assert [each.index for each in samples] == [0, 1, 2, 3]
    assert samples[0].token_ids == solo(prompt, SEEDED)
    assert len({tuple(each.token_ids) for each in samples}) == 4
    again = run_one(make_engine(max_num_seqs=1), prompt, params)  # one at a time
    assert [each.token_ids for each in again.outputs] == [each.token_ids for each in samples]
    check_all_home(engine)


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
    check_all_home(engine)


@pytest.mark.parametrize("steps_in_flight", [0, 1])
@pytest.mark.parametrize("steps", [1, 4, 7])
def test_a_fork_continues_from_the_current_token(steps: int, steps_in_flight: int) -> None:
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
    check_all_home(engine)


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
    check_all_home(engine)


def test_deltas_after_a_rollback_contain_only_new_tokens() -> None:
    """Neither dropped tokens nor the token that the rollback fetched are reported."""
    engine = make_engine(block_size=4, steps_in_flight=1)
    engine.add_request("a", prompt_of(6), SEEDED)
    seen: list[int] = []
    while len(seen) < 5:
        for output in engine.step():
            seen += output.outputs[0].delta_token_ids
    engine.rollback("a", 3)  # of 6 tokens, one of which is in flight
    seen = seen[:3]
    for output in (each for _ in range(50) for each in engine.step()):
        seen += output.outputs[0].delta_token_ids
        assert seen == output.outputs[0].token_ids
    assert output.finished


def test_rollback_leaves_cached_blocks_as_they_were() -> None:
    """After a rollback, a request copies a cached block before it writes to it."""
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
    check_all_home(engine)
