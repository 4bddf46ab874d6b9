"""Aborted requests and failed steps: rows are dropped, blocks and slots are returned."""

import pytest

from tests.support.scheduler_world import IN_FLIGHT, World, assert_right, run_until_preemption


def test_a_waiting_request_is_aborted():
    """Here before it was ever scheduled."""
    world = World(slots=1)
    first, second = world.add(5), world.add(5)
    world.scheduler.abort(second)
    world.driver.run()
    assert (first.finish_reason, second.finish_reason) == ("length", "abort")
    assert world.rows_of(second) == []
    world.assert_home()


def test_an_only_request_is_aborted_before_its_first_step():
    world = World()
    world.scheduler.abort(world.add(5))
    assert world.scheduler.schedule().rows == []
    world.assert_home()


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
@pytest.mark.parametrize("prompt", [5, 30])
def test_an_abort_between_schedule_and_commit_drops_the_row(prompt, steps):
    """In a first chunk, in a later one, and while decoding."""
    world = World(budget=8)
    gone, stays = world.add(prompt), world.add(5)
    for _ in range(steps):
        world.driver.step()
    world.driver.dispatch()
    count = len(gone.tokens)
    world.scheduler.abort(gone)
    world.driver.run()
    assert len(gone.tokens) == count and gone.finish_reason == "abort"
    assert_right(stays, 8)
    world.assert_home()


def test_the_blocks_of_an_abort_are_free_at_once():
    world = World(4, 4)
    request = world.add(16)
    world.driver.dispatch()
    world.scheduler.abort(request)
    assert world.scheduler.blocks.can_allocate(4)


@IN_FLIGHT
def test_the_blocks_and_the_slot_of_an_abort_serve_the_next(in_flight):
    world = World(4, slots=1, in_flight=in_flight)
    gone = world.add(14)
    world.driver.step()
    world.driver.step()
    world.scheduler.abort(gone)
    after = world.add(9, max_tokens=6)
    world.driver.run()
    assert_right(after, 6)


def test_a_preempted_request_is_aborted():
    world = World(4)
    for _ in range(3):
        world.add(4, max_tokens=6)
    run_until_preemption(world)
    world.scheduler.abort(world.requests[2])
    world.driver.run()
    assert world.requests[2].finish_reason == "abort"
    world.assert_home()


def test_a_second_abort_changes_nothing():
    world = World()
    gone, stays = world.add(5), world.add(5)
    world.driver.step()
    world.scheduler.abort(gone)
    world.scheduler.abort(gone)
    world.driver.run()
    assert_right(stays, 8)
    world.assert_home()


@IN_FLIGHT
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_after_a_failed_step_every_request_still_gets_its_continuation(steps, in_flight):
    world = World(12, budget=8, in_flight=in_flight)
    for length in (9, 2, 14):
        world.add(length)
    for _ in range(steps):
        world.driver.step()
    world.scheduler.schedule()  # this plan is never dispatched
    world.driver.restart()
    world.driver.run()
    for request in world.requests:
        assert_right(request, 8)
    world.assert_home()
