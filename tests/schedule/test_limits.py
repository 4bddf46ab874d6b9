"""Limits of a step and of a request: slots, token budget, model length; prefill chunks."""

import random

import pytest

from tests.support.scheduler_world import IN_FLIGHT, World, assert_right, finish_order


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_as_many_run_as_there_are_slots(slots):
    world = World(slots=slots, budget=64)
    for _ in range(5):
        world.add(3)
    most = 0
    while world.scheduler.has_unfinished():
        world.driver.step()
        most = max(most, len(world.scheduler.running))
    assert most == slots


@IN_FLIGHT
@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 17, 30])
def test_chunks_cover_each_position_once_and_in_order(length, in_flight):
    world = World(budget=8, in_flight=in_flight)
    request = world.add(length, max_tokens=1)
    world.driver.run()
    rows = world.rows_of(request)
    ends = [0] + [start + count for start, count, _ in rows]
    assert [start for start, _, _ in rows] == ends[:-1] and ends[-1] == length


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 17])
def test_only_the_last_chunk_samples(length):
    world = World(budget=8)
    request = world.add(length, max_tokens=1)
    world.driver.run()
    assert [samples for _, _, samples in world.rows_of(request)][:-1] == [False] * (
        (length - 1) // 8
    )
    assert world.rows_of(request)[-1][2]


def test_chunks_fill_the_budget_that_decode_rows_leave():
    world = World(budget=8)
    world.add(5, max_tokens=20)
    world.driver.step()
    world.add(30)
    sizes = []
    for _ in range(4):
        world.driver.step()
        sizes.append([row.num_tokens for row in world.driver.plans[-1].rows])
    assert sizes == [[1, 7], [1, 7], [1, 7], [1, 7]]


def test_one_budget_is_shared_by_the_chunks_of_several_prompts():
    world = World(budget=8)
    for length in (5, 2, 9):
        world.add(length)
    world.driver.step()
    assert [row.num_tokens for row in world.driver.plans[0].chunks] == [5, 2, 1]


@pytest.mark.parametrize(("slots", "budget"), [(8, 8), (8, 20), (30, 5), (4, 64)])
def test_neither_prompts_nor_decoding_requests_starve(slots, budget):
    """Every decoding request has a row in every step. Unfinished prompts take the rest of the
    budget, which is at least 1 token."""
    world = World(blocks=2000, slots=slots, budget=budget, in_flight=0)
    rng = random.Random(slots * 100 + budget)
    for _ in range(60):
        world.add(rng.randint(1, 90), rng.randint(1, 30))
    decoding, least = set(), max(1, budget - slots + 1)
    while world.scheduler.has_unfinished():
        world.driver.step()
        plan = world.driver.plans[-1]
        assert decoding == {row.request for row in plan.decode}
        if any(not each.slot_has_token for each in world.scheduler.running):
            assert plan.num_tokens == budget and plan.num_tokens - len(plan.decode) >= least
        samplers = {each for row in plan.rows for each in row.samples}
        decoding = {each for each in samplers if not each.is_finished}
    world.assert_home()


def test_a_budget_below_the_rows_serves_the_oldest():
    world = World(budget=2)
    for _ in range(3):
        world.add(2, max_tokens=12)
    assert finish_order(world) == ["r0", "r1", "r2"]
    assert max(len(plan.decode) for plan in world.driver.plans) == 2


@IN_FLIGHT
def test_one_token_needs_no_decode_row(in_flight):
    world = World(in_flight=in_flight)
    request = world.add(5, max_tokens=1)
    world.driver.run()
    assert world.rows_of(request) == [(0, 5, True)]


@pytest.mark.parametrize(("max_tokens", "length"), [(10, 1), (1, 1)])
def test_output_ends_at_the_models_limit(max_tokens, length):
    world = World(max_model_len=16)
    request = world.add(15, max_tokens=max_tokens)
    world.driver.run()
    assert_right(request, length)


@pytest.mark.parametrize("length", [16, 17])
def test_a_prompt_without_room_for_output_is_refused(length):
    with pytest.raises(ValueError, match="max_model_len=16"):
        World(max_model_len=16).add(length)
