"""Workloads of the serving benchmarks, and trials by continuous and static batching."""

import random

import pytest

from bench.serving import trial
from bench.serving.own_engine import blocks_without_preemption
from bench.serving.workload import Workload, make_even_workload, make_workload


def test_workload_is_the_measured_one():
    """Published measurements used these numbers."""
    workload = make_workload()
    assert (workload.num_prompt_tokens, workload.num_output_tokens) == (9137, 9579)
    rng = random.Random(0)
    first = [rng.randrange(3, 49000) for _ in range(rng.randint(16, 256))]
    assert workload.prompts[0] == first
    assert len(workload.prompts) == len(workload.output_lens) == 64


def test_workload_keeps_to_the_vocabulary():
    workload = make_workload(6, first_id=3, end_id=128)
    assert all(3 <= token < 128 for prompt in workload.prompts for token in prompt)
    with pytest.raises(ValueError, match="end_id 3"):
        make_workload(6, end_id=3)
    with pytest.raises(ValueError, match="num_requests is 0"):
        make_workload(0)


def test_even_workload_has_one_size():
    workload = make_even_workload(3, 5, 2, end_id=128)
    assert [len(prompt) for prompt in workload.prompts] == [5] * 3
    assert workload.output_lens == (2, 2, 2)
    assert workload.first(9) == Workload(workload.prompts[:1], (9,))


class FakeEngine:
    """Takes one second per step; a call takes as many steps as its longest output."""

    def __init__(self):
        self.now = 0.0
        self.calls = []

    def clock(self):
        return self.now

    def generate(self, prompts, lengths):
        self.calls.append((len(prompts), list(lengths)))
        self.now += max(lengths)
        return [[prompt[0]] * length for prompt, length in zip(prompts, lengths, strict=True)]


WORKLOAD = Workload(([10], [11], [12], [13], [14]), (3, 7, 2, 2, 5))


def test_static_batches_wait_for_their_longest():
    """With two rows per batch, 7 + 2 + 5 seconds for the 19 requested tokens."""
    engine = FakeEngine()
    done = trial.static(WORKLOAD, 2, engine.generate, engine.clock)
    assert engine.calls == [(2, [7, 7]), (2, [2, 2]), (1, [5])]
    assert done.seconds == 14
    assert [len(ids) for ids in done.outputs] == [3, 7, 2, 2, 5]
    assert [ids[0] for ids in done.outputs] == [10, 11, 12, 13, 14]
    assert done.tokens_per_second == pytest.approx(19 / 14)


def test_continuous_adds_all_at_once():
    engine = FakeEngine()
    done = trial.continuous(WORKLOAD, engine.generate, engine.clock)
    assert engine.calls == [(5, [3, 7, 2, 2, 5])]
    assert done.tokens_per_second == pytest.approx(19 / 7)


def test_missing_tokens_are_refused():
    with pytest.raises(ValueError, match="request 1 was given 6 tokens instead of 7"):
        trial.continuous(WORKLOAD, lambda _, lens: [[0] * min(length, 6) for length in lens])


def test_agreement_stops_at_the_first_difference():
    ours = [[1, 2, 3, 4], [5, 6], [7]]
    theirs = [[1, 2, 9, 4], [5, 6], [8]]
    assert trial.agreement(ours, theirs) == {
        "ids": 4, "of_ids": 7, "requests": 1, "of_requests": 3,
    }  # fmt: skip


def test_pool_holds_the_longest_that_run_together():
    """Two of five run at once with 1 + 7 tokens each: one block each, and the watermark."""
    assert blocks_without_preemption(WORKLOAD, 2) == 3
