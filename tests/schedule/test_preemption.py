"""Preemption: the choice of the victim, recomputation, and progress in a small pool."""

from itertools import pairwise

import pytest

from pagedjax.schedule.request import Status
from tests.support.scheduler_world import IN_FLIGHT, World, assert_right, run_until_preemption


@IN_FLIGHT
@pytest.mark.parametrize(
    ("priorities", "victim"), [((0, 0, 0), 2), ((0, 0, -1), 1), ((1, 0, 0), 0)]
)
def test_the_least_important_newest_is_preempted(priorities, victim, in_flight):
    world = World(4, in_flight=in_flight)
    for priority in priorities:
        world.add(4, priority=priority)
    run_until_preemption(world)
    waiting = [each for each in world.requests if each.status is Status.WAITING]
    assert waiting == [world.requests[victim]]


@IN_FLIGHT
def test_an_urgent_request_that_came_last_is_not_the_victim(in_flight):
    world = World(5, in_flight=in_flight)
    for priority in (0, 0, -1):
        world.add(4, max_tokens=12, priority=priority)
        world.driver.step()
    run_until_preemption(world)
    assert [each.status for each in world.requests] == [
        Status.RUNNING, Status.WAITING, Status.RUNNING,
    ]  # fmt: skip


@IN_FLIGHT
def test_a_preempted_request_is_recomputed_whole(in_flight):
    world = World(4, in_flight=in_flight)
    for _ in range(3):
        world.add(4, max_tokens=6)
    run_until_preemption(world)
    victim = world.requests[2]
    before = len(world.rows_of(victim))
    world.driver.run()
    start, count, samples = world.rows_of(victim)[before]
    assert (start, samples) == (0, True) and count > 4


@IN_FLIGHT
def test_a_preempted_request_gets_exactly_the_tokens_it_lacked(in_flight):
    world = World(4, in_flight=in_flight)
    for _ in range(3):
        world.add(4, max_tokens=6)
    world.driver.run()
    assert world.scheduler.num_preemptions
    for request in world.requests:
        assert_right(request, 6)


def test_a_token_in_flight_at_preemption_is_kept():
    world = World(4)
    for _ in range(3):
        world.add(4, max_tokens=6)
    run_until_preemption(world)
    victim = world.requests[2]
    computed = sum(samples for _, _, samples in world.rows_of(victim))
    assert len(victim.output_ids) + victim.num_pending == computed > 0


def test_a_recomputation_is_chunked_like_a_prompt():
    world = World(8, budget=4)
    for _ in range(3):
        world.add(8, max_tokens=12)
    world.driver.run()
    assert world.scheduler.num_preemptions
    for request in world.requests:
        assert_right(request, 12)


@IN_FLIGHT
@pytest.mark.parametrize(("max_tokens", "preempts"), [(3, False), (4, False), (5, True)])
def test_a_pool_that_is_exactly_used_up_preempts_nobody(max_tokens, preempts, in_flight):
    """Two prompts of 5 tokens in 2 blocks each; the last output token needs no KV entry."""
    world = World(4, in_flight=in_flight)
    for _ in range(2):
        world.add(5, max_tokens=max_tokens)
    world.driver.run()
    assert bool(world.scheduler.num_preemptions) == preempts


@IN_FLIGHT
@pytest.mark.parametrize(("prompt", "length"), [(60, 5), (63, 2), (64, 1)])
def test_a_request_that_outgrows_the_pool_alone_ends_with_length(prompt, length, in_flight):
    """A pool of 4 blocks of 16 tokens."""
    world = World(4, 16, in_flight=in_flight)
    request = world.add(prompt, max_tokens=20)
    world.driver.run(max_steps=30)
    assert_right(request, length)
    world.assert_home()


def test_a_prompt_larger_than_the_pool_is_refused_and_others_are_served():
    world = World(4, 16)
    with pytest.raises(ValueError, match="pool has 4"):
        world.add(80)
    request = world.add(8)
    world.driver.run(max_steps=30)
    assert_right(request, 8)


def steps_alone(prompt, max_tokens, in_flight):
    world = World(5, in_flight=in_flight)
    world.add(prompt, max_tokens)
    return world.driver.run()


@IN_FLIGHT
def test_requests_that_do_not_fit_together_all_finish(in_flight):
    """Three requests of 8 + 8 tokens in a pool of 5 blocks of 4."""
    world = World(5, in_flight=in_flight)
    for _ in range(3):
        world.add(8, max_tokens=8)
    steps = world.driver.run()
    for request in world.requests:
        assert_right(request, 8)
    assert steps <= 3 * 3 * steps_alone(8, 8, in_flight)


@IN_FLIGHT
def test_between_two_preemptions_some_request_advances(in_flight):
    world = World(5, in_flight=in_flight)
    for _ in range(3):
        world.add(8, max_tokens=8)
    progress = []  # output tokens of all requests at each preemption
    while world.scheduler.has_unfinished():
        before = world.scheduler.num_preemptions
        world.driver.step()
        if world.scheduler.num_preemptions > before:
            progress.append(sum(len(each.output_ids) for each in world.requests))
    assert progress and all(earlier < later for earlier, later in pairwise(progress))


@pytest.mark.parametrize(("running", "admitted"), [(False, True), (True, False)])
def test_admission_leaves_a_part_of_the_pool_to_the_running(running, admitted):
    world = World(200, 1, budget=1000)
    if running:
        world.add(1, max_tokens=20)
        world.driver.step()
    request = world.add(198, max_tokens=1)
    world.driver.dispatch()
    assert (request.status is Status.RUNNING) == admitted
