"""Scoring requests in the scheduler: they compute every position but sample no token."""

import pytest

from tests.support.scheduler_world import IN_FLIGHT, World, assert_right


@IN_FLIGHT
@pytest.mark.parametrize("length", [2, 8, 9, 10, 17])
def test_a_scored_text_is_computed_up_to_its_last_token(length, in_flight):
    world = World(budget=8, in_flight=in_flight)
    request = world.score(length)
    world.driver.run()
    rows = world.rows_of(request)
    covered = [position for start, count, _ in rows for position in range(start, start + count)]
    assert covered == list(range(length - 1))
    assert request.finish_reason == "length" and request.output_ids == []


def test_a_scored_text_never_samples():
    world = World(budget=8)
    request = world.score(20)
    world.driver.run()
    assert not any(samples for _, _, samples in world.rows_of(request))


def test_a_scored_text_may_fill_the_pool():
    world = World(4, 4)
    request = world.score(16)
    world.driver.run()
    assert request.finish_reason == "length"
    world.assert_home()


def test_scoring_and_generating_do_not_disturb_each_other():
    world = World(12, budget=8)
    first, _, second = world.add(7), world.score(30), world.add(12)
    world.driver.run()
    assert_right(first, 8)
    assert_right(second, 8)
    world.assert_home()
