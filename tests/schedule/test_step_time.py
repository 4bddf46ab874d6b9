"""StepTime: which host time overlaps with the device, measured by a clock that the test sets."""

from dataclasses import replace

import pytest

from pagedjax.schedule.step_time import StepTime
from tests.support.tiny_llama import GREEDY, make_engine


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def run(time, clock, plan):
    """Run steps, given as lists of (event, seconds of work or waiting before the event ends)."""
    for step in plan:
        clock.now += 1000.0  # time between steps belongs to the user
        with time.step():
            for event, seconds in step:
                if event == "wait":
                    with time.waiting():
                        clock.now += seconds
                    continue
                clock.now += seconds
                if event != "work":
                    time.dispatch(device_is_idle=event == "dispatch idle")


def test_without_a_step_in_flight_all_work_before_a_dispatch_is_exposed():
    clock, step = Clock(), [("dispatch idle", 3.0), ("wait", 10.0), ("work", 2.0)]
    time = StepTime(clock)
    run(time, clock, [step, step])
    assert (time.host_s, time.wait_s) == (10.0, 20.0)
    assert time.exposed_s == 3.0 + 2.0 + 3.0  # the last 2 s count only if another dispatch follows


def test_work_behind_a_busy_device_is_hidden():
    clock = Clock()
    time = StepTime(clock)
    first = [("dispatch idle", 3.0)]
    later = [("dispatch busy", 3.0), ("wait", 5.0), ("work", 2.0)]
    run(time, clock, [first, later, later])
    assert (time.host_s, time.wait_s, time.exposed_s) == (13.0, 10.0, 3.0)


def test_a_device_that_ended_early_exposes_the_work_since_the_last_wait():
    clock = Clock()
    time = StepTime(clock)
    later = [("dispatch idle", 3.0), ("wait", 5.0), ("work", 2.0)]
    run(time, clock, [[("dispatch idle", 1.0)], later, later])
    assert time.exposed_s == 1.0 + 3.0 + 2.0 + 3.0


def test_waiting_outside_a_step_is_not_counted():
    clock = Clock()
    time = StepTime(clock)
    with time.waiting():
        clock.now += 7.0
    assert (time.host_s, time.wait_s, time.exposed_s) == (0.0, 0.0, 0.0)
    run(time, clock, [[("dispatch idle", 1.0), ("work", 2.0)]])
    with time.waiting():
        clock.now += 7.0
    run(time, clock, [[("dispatch idle", 3.0)]])
    assert time.exposed_s == 1.0 + 2.0 + 3.0, "the work before the wait was not counted"


@pytest.mark.parametrize("in_flight", [0, 1])
def test_the_engines_times_add_up(in_flight):
    engine = make_engine(num_blocks=32, steps_in_flight=in_flight)
    for index in range(3):
        engine.add_request(str(index), [1 + index] * 20, GREEDY)
    engine.run()
    stats = engine.stats()
    assert stats.elapsed_s == pytest.approx(stats.host_s + stats.wait_s)
    assert 0 < stats.exposed_s <= stats.host_s and 0 <= stats.overlap < 1
    assert stats.device_s == pytest.approx(stats.elapsed_s - stats.exposed_s)
    if not in_flight:
        assert stats.overlap < 0.5  # only the work after the last step is not exposed


def test_padding_is_counted():
    engine = make_engine(num_blocks=32, max_num_seqs=8)
    engine.add_request("a", [5] * 20, replace(GREEDY, max_tokens=3))
    engine.run()
    stats = engine.stats()
    # One step of 20 prompt tokens, padded to a bucket of 64 with 8 decode rows, and two steps of
    # one decode row, padded to two.
    assert (stats.computed_tokens, stats.padded_tokens) == (20 + 2, (64 + 8) + 2 * 2)
    assert stats.padding_waste == pytest.approx(1 - 22 / 76)
