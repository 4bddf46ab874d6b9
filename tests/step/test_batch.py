"""Buckets: the shapes to which steps are padded."""

from __future__ import annotations

import itertools

import pytest

from pagedjax.sampling_params import SamplingParams
from pagedjax.schedule.plan import Plan, Row
from pagedjax.schedule.request import Request
from pagedjax.step.batch import Buckets, Shape

BUCKETS = [
    Buckets(64, 512), Buckets(1, 1), Buckets(3, 7), Buckets(256, 2048), Buckets(20, 100),
    Buckets(64, 512, least_rows=16), Buckets(2, 4096),
]  # fmt: skip
REQUEST = Request(
    id="a", arrival=0, tokens=[1], num_prompt=1, params=SamplingParams(), seed=0, max_len=9,
    stop_ids=frozenset(), eos_ids=frozenset(),
)  # fmt: skip


def plan(decodes: int, tokens: int, samples: int) -> Plan:
    """A plan of `decodes` decode rows and a chunk of `tokens` tokens for `samples` samples."""
    decode = [Row(REQUEST, 0, 1, (REQUEST,))] * decodes
    return Plan(decode, [Row(REQUEST, 0, tokens, (REQUEST,) * samples)] if tokens else [])


@pytest.mark.parametrize("buckets", BUCKETS, ids=str)
def test_every_step_fits_one_of_the_shapes(buckets: Buckets) -> None:
    shapes = buckets.shapes()
    assert len(set(shapes)) == len(shapes)
    rows, budget = buckets.max_num_seqs, buckets.max_num_batched_tokens
    some = sorted({n for n in (0, 1, 2, 3, 15, 16, 17, 33, rows - 1, rows) if 0 <= n <= rows})
    chunks = sorted({n for n in (0, 1, 63, 64, 65, 200, budget // 2, budget) if 0 <= n <= budget})
    for decodes, tokens in itertools.product(some, chunks):
        for samples in {0, 1, rows - decodes} if tokens else {0}:
            if not decodes + tokens or decodes + samples > rows:
                continue
            found = buckets.fit(plan(decodes, tokens, samples))
            assert found in shapes
            assert found.decode_rows >= decodes and found.tokens >= tokens
            assert found.logit_rows >= decodes + samples
            assert found.decode_rows >= buckets.least_rows


def test_the_shapes_of_a_default_engine_on_a_cpu() -> None:
    """Mixed steps of up to 16 rows have their own shape when 64 rows would be at least a quarter
    of the tokens."""
    alone = [Shape(rows, 0, rows) for rows in (2, 8, 16, 32, 48, 64)]
    mixed = [Shape(rows, tokens, rows) for tokens in (64, 128, 256) for rows in (16, 64)]
    assert Buckets(64, 512).shapes() == [*alone, *mixed, Shape(64, 512, 64)]
