"""Beam search on the scheduler with a fake device: a small pool does not change the sequences."""

import random

import numpy as np
import pytest

from pagedjax.config import ModelConfig
from pagedjax.devices.host_call import Caller
from pagedjax.intake.intake import Intake
from pagedjax.schedule.blocks import BlockPool
from pagedjax.schedule.scheduler import Scheduler
from pagedjax.search.beam_search import BeamSearch
from pagedjax.step.scores import Scores
from tests.support.fake_device import FakeDevice

VOCAB, END = 40, 3
MODEL = ModelConfig(VOCAB, 8, 8, 1, 1, 1, 8, eos_token_ids=(END,))


def scores_after(context):
    """Log probabilities of all tokens, determined by the whole context."""
    rng = random.Random(hash(tuple(context)))
    return np.array([-5 * rng.random() for _ in range(VOCAB)])


class RankingDevice(FakeDevice):
    """Ranks the next tokens by the context that it reads through the block table."""

    def _sample(self, row, request):
        best = scores_after(self._context(row))
        order = np.argsort(-best, kind="stable")
        return order, best[order]


class RankingEngine:
    """The part of an engine that beam search uses, with `in_flight` uncommitted steps."""

    tokenizer = None
    model_config = MODEL

    def __init__(self, blocks, size, slots, budget, in_flight, caching):
        pool = BlockPool(blocks, size)
        self.caller = Caller()
        self.scheduler = Scheduler(pool, slots, budget, caching)
        self.intake = Intake(MODEL, 200, pool, seed=0)
        self._device = RankingDevice(blocks, size, slots)
        self._in_flight, self._plans = in_flight, []
        self._arrivals = 0

    def next_arrival(self):
        self._arrivals += 1
        return self._arrivals

    def step_for(self, request_ids):
        assert not request_ids
        self.step()

    def step(self):
        plan = self.scheduler.schedule()
        self.scheduler.check()
        if plan.rows:
            self._plans.append((plan, self._device.run(plan)))
        if len(self._plans) > (self._in_flight if plan.rows else 0):
            plan, found = self._plans.pop(0)
            tokens = [0] * len(found)
            ranked = tuple(np.array([each[i] for each in found]) for i in range(2))
            Scores().take(plan, tokens, None, None, ranked)
            self.scheduler.commit(plan, tokens)
        return []


def search(engine, prompts, width, max_tokens):
    found = BeamSearch(engine, width, max_tokens, 1.0).run(prompts)
    engine.scheduler.check()
    assert engine.scheduler.blocks.num_referenced == 0
    return [[(each.token_ids, each.score) for each in output.sequences] for output in found]


@pytest.mark.parametrize("in_flight", [0, 1])
def test_small_pools_find_the_sequences_of_a_large_one(in_flight):
    """A preempted beam gets candidates only for its full length, and writes only its own blocks."""
    for seed in range(250):
        rng = random.Random(seed)
        prompts = [
            [rng.randrange(VOCAB) for _ in range(rng.randint(1, 30))]
            for _ in range(rng.randint(1, 3))
        ]
        width, max_tokens, size = rng.randint(2, 4), rng.randint(2, 20), rng.choice([1, 2, 4])
        need = max(-(-(len(prompt) + max_tokens) // size) for prompt in prompts)
        small = RankingEngine(
            need + rng.randint(0, 8), size, rng.randint(2, 6), rng.choice([2, 3, 4, 8, 16]),
            in_flight, rng.random() < 0.5,
        )  # fmt: skip
        large = RankingEngine(1000, 4, 64, 512, 0, True)
        wanted = search(large, prompts, width, max_tokens)
        assert search(small, prompts, width, max_tokens) == wanted, f"seed {seed}"
