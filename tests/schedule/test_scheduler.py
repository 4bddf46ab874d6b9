"""The scheduler alone, on a device of Python lists: order, limits, preemption, aborts, the pool."""

import random
from collections import Counter
from itertools import pairwise

import pytest

from pagedjax.config import ModelConfig
from pagedjax.intake.intake import Intake
from pagedjax.sampling_params import SamplingParams
from pagedjax.schedule.blocks import BlockPool
from pagedjax.schedule.request import Status
from pagedjax.schedule.scheduler import Scheduler
from tests.support.fake_device import VOCAB, Driver, continuation

IN_FLIGHT = pytest.mark.parametrize("in_flight", [0, 1])


class World:
    """A driver, its intake, and every request made so far."""

    def __init__(
        self, blocks=100, size=4, *, slots=8, budget=64, in_flight=1, max_model_len=512, eos=(),
        caching=True,
    ):  # fmt: skip
        pool = BlockPool(blocks, size)
        model = ModelConfig(VOCAB, 8, 8, 1, 2, 1, 4, eos_token_ids=tuple(eos))
        self.scheduler = Scheduler(pool, slots, budget, caching)
        self.driver = Driver(self.scheduler, slots, in_flight)
        self._intake = Intake(model, max_model_len, pool, seed=0)
        self.requests = []

    def add(self, prompt, max_tokens=8, **params):
        """Queue a prompt, given as ids or as a length; the Request."""
        arrival = len(self.requests)
        if isinstance(prompt, int):
            prompt = [(arrival * 31 + i) % VOCAB for i in range(prompt)]
        params = SamplingParams(max_tokens=max_tokens, **params)
        request = self._intake.request(f"r{arrival}", prompt, params)
        self._intake.admit(request, arrival)
        self.requests.append(request)
        self.scheduler.add(request)
        return request

    def score(self, length):
        request = self._intake.scoring(range(length))
        self._intake.admit(request, len(self.requests))
        self.requests.append(request)
        self.scheduler.add(request)
        return request

    def rows_of(self, request):
        """(start, num_tokens, samples) of every row that the request had so far."""
        rows = [row for plan in self.driver.plans for row in plan.rows]
        return [
            (row.start, row.num_tokens, bool(row.samples)) for row in rows if row.request is request
        ]

    def assert_home(self):
        """Every block and every slot has been given back."""
        self.scheduler.check()
        assert not self.scheduler.has_unfinished()
        assert self.scheduler.blocks.num_referenced == 0


def assert_right(request, length, reason="length"):
    """The request has exactly its one right output."""
    prompt = request.tokens[: request.num_prompt]
    assert request.output_ids == continuation(prompt, length)
    assert request.finish_reason == reason


# -- whole runs -----------------------------------------------------------------------------------


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
def test_requests_that_arrive_while_others_run_get_their_continuation(in_flight):
    world = World(12, in_flight=in_flight, budget=8)
    for length in (9, 2, 14, 5, 1):
        world.add(length)
        world.driver.step()
        world.driver.step()
    world.driver.run()
    for request in world.requests:
        assert_right(request, 8)


# -- order ----------------------------------------------------------------------------------------


def finish_order(world):
    order = []
    while world.scheduler.has_unfinished():
        order += [each.id for each in world.driver.step() if each.is_finished]
    return order


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
    world.add(12)  # 3 of 6 blocks, and more to come
    world.add(16)  # 4 blocks: must wait
    world.add(2)
    plan = world.driver.dispatch()
    assert [row.request.id for row in plan.rows] == ["r0"]


# -- limits ---------------------------------------------------------------------------------------


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
    """Every decoding request has a row in every step, and a prompt that is not done takes all the
    budget that these leave, which is 1 token at least."""
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
    """B41."""
    world = World(in_flight=in_flight)
    request = world.add(5, max_tokens=1)
    world.driver.run()
    assert world.rows_of(request) == [(0, 5, True)]


@pytest.mark.parametrize(("max_tokens", "length"), [(10, 1), (1, 1)])
def test_output_ends_at_the_models_limit(max_tokens, length):
    """B40."""
    world = World(max_model_len=16)
    request = world.add(15, max_tokens=max_tokens)
    world.driver.run()
    assert_right(request, length)


@pytest.mark.parametrize("length", [16, 17])
def test_a_prompt_without_room_for_output_is_refused(length):
    """B40."""
    with pytest.raises(ValueError, match="max_model_len=16"):
        World(max_model_len=16).add(length)


# -- ends -----------------------------------------------------------------------------------------


@IN_FLIGHT
@pytest.mark.parametrize("at", [0, 1, 3])
def test_an_end_of_sequence_is_the_last_token(at, in_flight):
    """B19; with a plan in flight, the row after it is dropped."""
    prompt = [5, 6, 7]
    output = continuation(prompt, 8)
    world = World(in_flight=in_flight, eos=[output[at], output[at + 2]])
    request = world.add(prompt)
    world.driver.run()
    assert request.output_ids == output[: at + 1]
    assert (request.finish_reason, request.stop_reason) == ("stop", None)
    world.assert_home()


def test_ignored_end_of_sequence_ids_do_not_stop():
    """B19."""
    prompt = [5, 6, 7]
    world = World(eos=continuation(prompt, 8))
    request = world.add(prompt, ignore_eos=True)
    world.driver.run()
    assert_right(request, 8)


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_stop_token_names_itself(ignore_eos):
    """B19."""
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


# -- preemption -----------------------------------------------------------------------------------


def run_until_preemption(world):
    for _ in range(100):
        world.driver.step()
        if world.scheduler.num_preemptions:
            return
    raise AssertionError("nobody was preempted")


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
    """Two prompts of 5 and 2 blocks each; the last token of an output needs no place."""
    world = World(4, in_flight=in_flight)
    for _ in range(2):
        world.add(5, max_tokens=max_tokens)
    world.driver.run()
    assert bool(world.scheduler.num_preemptions) == preempts


@IN_FLIGHT
@pytest.mark.parametrize(("prompt", "length"), [(60, 5), (63, 2), (64, 1)])
def test_a_request_that_outgrows_the_pool_alone_ends_with_length(prompt, length, in_flight):
    """B34: 4 blocks of 16."""
    world = World(4, 16, in_flight=in_flight)
    request = world.add(prompt, max_tokens=20)
    world.driver.run(max_steps=30)
    assert_right(request, length)
    world.assert_home()


def test_a_prompt_larger_than_the_pool_is_refused_and_others_are_served():
    """B34."""
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
    """B35: 5 blocks of 4, three requests of 8 + 8."""
    world = World(5, in_flight=in_flight)
    for _ in range(3):
        world.add(8, max_tokens=8)
    steps = world.driver.run()
    for request in world.requests:
        assert_right(request, 8)
    assert steps <= 3 * 3 * steps_alone(8, 8, in_flight)


@IN_FLIGHT
def test_between_two_preemptions_some_request_advances(in_flight):
    """B35."""
    world = World(5, in_flight=in_flight)
    for _ in range(3):
        world.add(8, max_tokens=8)
    progress = []  # output tokens of all, whenever somebody was preempted
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


# -- aborts and failures --------------------------------------------------------------------------


def test_a_waiting_request_is_aborted():
    """B38: also before it was ever scheduled."""
    world = World(slots=1)
    first, second = world.add(5), world.add(5)
    world.scheduler.abort(second)
    world.driver.run()
    assert (first.finish_reason, second.finish_reason) == ("length", "abort")
    assert world.rows_of(second) == []
    world.assert_home()


def test_an_only_request_is_aborted_before_its_first_step():
    """B38."""
    world = World()
    world.scheduler.abort(world.add(5))
    assert world.scheduler.schedule().rows == []
    world.assert_home()


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
@pytest.mark.parametrize("prompt", [5, 30])
def test_an_abort_between_schedule_and_commit_drops_the_row(prompt, steps):
    """B38: in a first chunk, in a later one, and while decoding."""
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
    """B29."""
    world = World(4)
    for _ in range(3):
        world.add(4, max_tokens=6)
    run_until_preemption(world)
    world.scheduler.abort(world.requests[2])
    world.driver.run()
    assert world.requests[2].finish_reason == "abort"
    world.assert_home()


def test_a_second_abort_changes_nothing():
    """B37."""
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
    world.scheduler.schedule()  # a plan whose dispatch fails
    world.driver.restart()
    world.driver.run()
    for request in world.requests:
        assert_right(request, 8)
    world.assert_home()


# -- scoring --------------------------------------------------------------------------------------


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


# -- a soak ---------------------------------------------------------------------------------------


def soak(world, rng, count):
    """Add `count` requests over time, of which some are aborted wherever they are."""
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
    """Also of those that are being recomputed after a preemption, chunk by chunk."""
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
    assert rewound[True] and rewound[False] > 3  # fewer of the first where prefixes are found again
    for request in world.requests:
        assert_right(request, request.params.max_tokens)
    world.assert_home()
