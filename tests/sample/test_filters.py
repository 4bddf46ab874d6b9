"""Top-k, top-p and min-p keep the tokens that sorting keeps."""

import jax.numpy as jnp
import numpy as np
import pytest

from pagedjax.sampling_params import SamplingParams
from pagedjax.schedule.plan import Plan, Row
from pagedjax.schedule.request import Request
from pagedjax.step.batch import Buckets, Packer
from tests.support.numpy_filters import probabilities, reaching
from tests.support.sampling_rows import (
    distinct_logits,
    filtered_weights,
    repeated,
    sampling,
    tied_logits,
)


def random_filters(rng, logits, kind):
    """Random filters of one kind or all three for each row of `logits`, away from float32 ties."""
    chosen = {"temperature": [], "min_p": [], "top_k": [], "top_p": []}
    for row in logits:
        params = {"temperature": float(rng.choice([0.5, 1.0, 2.0]))}
        if kind in ("min_p", "all"):
            share = probabilities(row, **params)
            levels = np.unique(np.append(share / share.max(), 0))
            pick = rng.integers(0, len(levels) - 1)
            params["min_p"] = float(levels[pick : pick + 2].mean())
        if kind in ("top_k", "all"):
            params["top_k"] = int(rng.integers(1, len(row) + 2))
        if kind in ("top_p", "all"):
            left = probabilities(row, **params)
            # Only tokens that are large enough to change a float32 sum.
            params["top_p"] = reaching(left, int(rng.integers(1, (left > 1e-5).sum() + 1)))
        for name, off in (("temperature", 1.0), ("min_p", 0.0), ("top_k", 0), ("top_p", 1.0)):
            chosen[name].append(params.get(name, off))
    return chosen


@pytest.mark.parametrize("vocab", [3, 128, 300, 5000])
@pytest.mark.parametrize("kind", ["min_p", "top_k", "top_p", "all"])
@pytest.mark.parametrize("make_logits", [tied_logits, distinct_logits], ids=["tied", "distinct"])
def test_filters_keep_the_tokens_that_sorting_keeps(make_logits, kind, vocab):
    """1,000 rows for each filter and kind of logits; V exceeds the listed best tokens in some."""
    rng = np.random.default_rng(vocab)
    logits = make_logits(rng, 400 if vocab == 300 else 200, vocab)
    params = random_filters(rng, logits, kind)
    wanted = np.stack(
        [
            probabilities(row, **{name: values[index] for name, values in params.items()}) > 0
            for index, row in enumerate(logits)
        ]
    )
    kept = filtered_weights(jnp.asarray(logits), sampling(len(logits), **params)) > 0
    np.testing.assert_array_equal(kept, wanted)


def kept_ids(logits, **params):
    weights = filtered_weights(repeated(logits, 1), sampling(1, **params))
    return np.flatnonzero(np.asarray(weights)[0]).tolist()


def test_top_k_keeps_exactly_k_of_equals():
    """A threshold on the logits would keep four."""
    assert kept_ids([1, 2, 2, 2, 3], top_k=3) == [1, 2, 4]


def test_top_p_counts_only_what_top_k_left():
    # Token 4 has 0.58 of the mass of tokens 1, 2, 4, but only 0.45 of the mass of all five.
    assert kept_ids([1, 2, 2, 2, 3], top_k=3, top_p=0.5) == [4]


@pytest.mark.parametrize(("top_p", "ids"), [(0.25, [0]), (0.5, [0, 1]), (0.51, [0, 1, 2])])
def test_top_p_that_is_reached_exactly_keeps_no_further_token(top_p, ids):
    assert kept_ids([0, 0, 0, 0], top_p=top_p) == ids


@pytest.mark.parametrize("top_p", [0.01, 1e-30, 1e-38, 1e-40, 1e-45, 1e-60])
def test_top_p_keeps_at_least_one_token(top_p):
    """Includes values below the range of float32, which SamplingParams allows."""
    assert kept_ids([0, 1, 3, 3, 2], top_p=top_p) == [2]


@pytest.mark.parametrize("top_k", [0, -1, 5, 6, 1000])
def test_top_k_of_nothing_or_all_is_off(top_k):
    assert kept_ids([0, 1, 3, 3, 2], top_k=top_k) == [0, 1, 2, 3, 4]


def test_top_k_keeps_no_token_without_weight():
    assert kept_ids([0, -np.inf, -np.inf, 1], top_k=3) == [0, 3]


def test_min_p_of_one_keeps_all_best_tokens():
    assert kept_ids([0, 3, 1, 3], min_p=1.0) == [1, 3]


@pytest.mark.parametrize("vocab", [1, 2, 127, 129])
def test_filters_hold_at_any_width(vocab):
    """Disabled filters leave the softmax unchanged, also at V = 1."""
    logits = np.linspace(-1, 1, vocab, dtype=np.float32)
    weights = np.asarray(filtered_weights(repeated(logits, 2), sampling(2)))[1]
    np.testing.assert_allclose(weights / weights.sum(), probabilities(logits), rtol=1e-5)


def test_a_row_is_filtered_by_its_own_params():
    logits = repeated([0, 1, 2, 3], 4)
    params = sampling(4, top_k=[1, 0, 0, 0], top_p=[1, 0.6, 1, 1], min_p=[0, 0, 0.3, 0])
    kept = np.asarray(filtered_weights(logits, params)) > 0
    assert kept.tolist() == [
        [False, False, False, True],
        [False, False, False, True],
        [False, False, True, True],
        [True, True, True, True],
    ]


def packed(**params):
    """Filtered weights of logits [0, 1, 2, 3] for a request with these SamplingParams."""
    request = Request(
        id="a", arrival=0, tokens=[1, 2], num_prompt=2, params=SamplingParams(**params), seed=0,
        max_len=5, stop_ids=frozenset(), eos_ids=frozenset(), slot=0, block_ids=[3],
    )  # fmt: skip
    plan = Plan([], [Row(request, 0, 2, samples=(request,))])
    packer = Packer(Buckets(4, 64), num_blocks=10, block_size=16, table_width=4)
    arrays = packer.sampling(plan, packer.pack(plan, packer.buckets.fit(plan)).logit_slots)
    weights = filtered_weights(repeated([0, 1, 2, 3], arrays.slots.shape[0]), arrays)
    return np.asarray(weights)[0]


@pytest.mark.parametrize("top_k", [2**31 - 1, 2**31, 2**40])
def test_top_k_of_any_size_is_off(top_k):
    assert (packed(top_k=top_k) > 0).tolist() == [True] * 4


@pytest.mark.parametrize("temperature", [1e30, 1e39, 1e300])
def test_a_huge_temperature_flattens(temperature):
    assert packed(temperature=temperature).tolist() == [1.0] * 4


def test_each_param_reaches_its_filter():
    params = {"temperature": 0.75, "min_p": 0.02, "top_k": 3, "top_p": 0.9}
    weights = packed(**params)
    wanted = probabilities(np.arange(4), **params)
    np.testing.assert_allclose(weights / weights.sum(), wanted, rtol=1e-6)
