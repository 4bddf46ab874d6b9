"""A scheduler with its intake, driven on the fake device."""

import pytest

from pagedjax.config import ModelConfig
from pagedjax.intake.intake import Intake
from pagedjax.sampling_params import SamplingParams
from pagedjax.schedule.blocks import BlockPool
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
        """Queue a prompt, given as ids or as a length; return its Request."""
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
        """(start, num_tokens, whether it samples) of every row of the request so far."""
        rows = [row for plan in self.driver.plans for row in plan.rows]
        return [
            (row.start, row.num_tokens, bool(row.samples)) for row in rows if row.request is request
        ]

    def assert_home(self):
        """Assert that every request is finished and every block is returned."""
        self.scheduler.check()
        assert not self.scheduler.has_unfinished()
        assert self.scheduler.blocks.num_referenced == 0


def assert_right(request, length, reason="length"):
    """Assert that the request has its expected output and finish reason."""
    prompt = request.tokens[: request.num_prompt]
    assert request.output_ids == continuation(prompt, length)
    assert request.finish_reason == reason


def run_until_preemption(world):
    for _ in range(100):
        world.driver.step()
        if world.scheduler.num_preemptions:
            return
    raise AssertionError("nobody was preempted")


def finish_order(world):
    order = []
    while world.scheduler.has_unfinished():
        order += [each.id for each in world.driver.step() if each.is_finished]
    return order
