"""The scheduler on the fake device: outputs, admission order, stopping, and random traffic."""

import random
from collections import Counter

import pytest

from tests.support.fake_device import continuation
from tests.support.scheduler_world import IN_FLIGHT, World, assert_right, finish_order


@IN_FLIGHT
@pytest.mark.parametrize("budget", [1, 3, 64])
@pytest.mark.parametrize("blocks", [12, 100])
def test_every_request_gets_its_own_continuation(blocks, budget, in_flight):
    world = World(blocks, budget=budget, in_flight=in_flight)
    for prompt, max_tokens in [(1, 1), (4, 9), (13, 8), (8, 30), (3, 5), (9, 2)]:
        world.add(prompt, max_tokens)
    world.driver.run()
    for request in world.requests:
        assert_right(request, request.params.max_tokens)
    world.assert_home()


@IN_FLIGHT
def test_requests_that_arrive_while_others_run_get_their_own_continuation(in_flight):
    world = World(12, in_flight=in_flight, budget=8)
    for length in (9, 2, 14, 5, 1):
        world.add(length)
        world.driver.step()
        world.driver.step()
    world.driver.run()
    for request in world.requests:
        assert_right(request, 8)


@pytest.mark.parametrize(
    ("priorities", "order"),
    [((0, 0, 0), ["r0", "r1", "r2"]), ((2, 1, 0), ["r2", "r1", "r0"]),
     ((0, -1, -1), ["r1", "r2", "r0"]), ((1, 0, 1), ["r1", "r0", "r2"])],
)  # fmt: skip
def test_lower_priority_goes_first_then_earlier_arrival(priorities, order):
    world = World(slots=1)
    for priority in priorities:
        world.add(5, priority=priority)
    assert finish_order(world) == order


def test_an_urgent_arrival_waits_for_a_running_request_to_give_its_slot():
    world = World(slots=1)
    world.add(5)
    world.driver.step()
    world.add(5, priority=1)
    world.add(5, priority=-1)
    assert finish_order(world) == ["r0", "r2", "r1"]


def test_a_small_request_does_not_overtake_a_large_one_that_waits_for_blocks():
    world = World(6, budget=64)
    world.add(12)  # 3 of 6 blocks, and more while decoding
    world.add(16)  # needs 4 blocks: must wait
    world.add(2)
    plan = world.driver.dispatch()
    assert [row.request.id for row in plan.rows] == ["r0"]


@IN_FLIGHT
@pytest.mark.parametrize("at", [0, 1, 3])
def test_an_end_of_sequence_is_the_last_token(at, in_flight):
    """With a plan in flight, the row after the end is dropped."""
    prompt = [5, 6, 7]
    output = continuation(prompt, 8)
    world = World(in_flight=in_flight, eos=[output[at], output[at + 2]])
    request = world.add(prompt)
    world.driver.run()
    assert request.output_ids == output[: at + 1]
    assert (request.finish_reason, request.stop_reason) == ("stop", None)
    world.assert_home()


def test_ignored_end_of_sequence_ids_do_not_stop():
    prompt = [5, 6, 7]
    world = World(eos=continuation(prompt, 8))
    request = world.add(prompt, ignore_eos=True)
    world.driver.run()
    assert_right(request, 8)


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_stop_token_is_the_stop_reason(ignore_eos):
    prompt = [5, 6, 7]
    stop = continuation(prompt, 8)[2]
    world = World()
    request = world.add(prompt, stop_token_ids=[999, stop], ignore_eos=ignore_eos)
    world.driver.run()
    assert request.output_ids == continuation(prompt, 3)
    assert (request.finish_reason, request.stop_reason) == ("stop", stop)


def test_a_row_in_flight_after_the_end_reports_no_progress():
    prompt = [5, 6, 7]
    world = World(eos=continuation(prompt, 8)[1:2])
    world.add(prompt)
    progressed = [world.driver.step() for _ in range(3)]
    assert [len(each) for each in progressed] == [0, 1, 1]
    assert len(world.driver.plans) == 3 and world.driver.commit() == []


def test_commit_refuses_another_number_of_tokens():
    world = World()
    world.add(5)
    plan = world.scheduler.schedule()
    with pytest.raises(ValueError):
        world.scheduler.commit(plan, [1, 2])


def soak(world, rng, count):
    """Add `count` requests over time and abort some of them at random moments."""
    while world.scheduler.has_unfinished() or len(world.requests) < count:
        for _ in range(rng.randrange(3)):
            if len(world.requests) < count:
                world.add(rng.randint(1, 30), rng.randint(1, 12), priority=rng.randrange(-1, 2))
        alive = [each for each in world.requests if not each.is_finished]
        if alive and rng.random() < 0.15:
            world.scheduler.abort(rng.choice(alive))
            world.scheduler.check()
        world.driver.step()


@IN_FLIGHT
@pytest.mark.parametrize("budget", [5, 24])
def test_300_requests_with_aborts(budget, in_flight):
    world = World(16, slots=6, budget=budget, in_flight=in_flight)
    soak(world, random.Random(budget), 300)
    reasons = [request.finish_reason for request in world.requests]
    assert reasons.count("abort") > 30 and world.scheduler.num_preemptions > 10
    for request in world.requests:
        if request.finish_reason == "length":
            assert_right(request, request.params.max_tokens)
        else:
            prompt = request.tokens[: request.num_prompt]
            assert request.output_ids == continuation(prompt, len(request.output_ids))
    world.assert_home()


@IN_FLIGHT
@pytest.mark.parametrize("caching", [True, False])
def test_rollbacks_at_any_moment(caching, in_flight):
    """Includes requests that are recomputed in chunks after a preemption."""
    world, rng = (
        World(12, slots=3, budget=8, in_flight=in_flight, caching=caching),
        random.Random(5),
    )
    rewound = Counter()
    while world.scheduler.has_unfinished() or len(world.requests) < 150:
        if len(world.requests) < 150:
            world.add(rng.randint(1, 20), rng.randint(1, 24))
        if rng.random() < 0.2:
            world.driver.drain()
            alive = [each for each in world.requests if not each.is_finished and each.num_output]
            if alive:
                request = rng.choice(alive)
                rewound[request.num_computed > 0 and request.is_in_prefill] += 1
                world.scheduler.rollback(request, rng.randint(1, min(3, request.num_output)))
                world.scheduler.check()
        world.driver.step()
    assert rewound[True] and rewound[False] > 3  # rewound[True] is rarer with prefix caching
    for request in world.requests:
        assert_right(request, request.params.max_tokens)
    world.assert_home()
