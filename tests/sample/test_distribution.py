"""Tokens are drawn from the documented distribution."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tests.support.numpy_filters import probabilities
from tests.support.sampling_rows import DRAWS, repeated, sample, sampling


@pytest.mark.parametrize("varied", ["positions", "seeds"])
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.5},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.2},
        {"temperature": 1.5, "min_p": 0.05, "top_k": 12, "top_p": 0.85},
    ],
    ids=lambda params: ",".join(params) or "plain",
)
def test_draws_follow_the_distribution(params, varied):
    logits = np.random.default_rng(1).normal(0, 1.5, 41).astype(np.float32)
    logits[[3, 30]] = -np.inf
    wanted = probabilities(logits, **params)
    numbers = np.arange(DRAWS)
    seeds, positions = (numbers * 7919, 3) if varied == "seeds" else (11, numbers)
    positions = jnp.asarray(np.broadcast_to(np.int32(positions), DRAWS))
    drawn = sample(repeated(logits, DRAWS), sampling(DRAWS, seeds=seeds, **params), positions)
    counts = np.bincount(np.asarray(drawn), minlength=len(logits))
    sigma = np.sqrt(DRAWS * wanted * (1 - wanted))
    assert (np.abs(counts - DRAWS * wanted) <= 4 * sigma).all()


def p_value(tokens, wanted):
    """p-value of Pearson's test, with tokens merged into classes of at least 20 expected draws."""
    expected = len(tokens) * wanted
    classes = np.minimum(np.cumsum(expected) // 20, sum(expected) // 20 - 1).astype(int)
    counts = np.bincount(classes, np.bincount(tokens, minlength=len(wanted)))
    expected = np.bincount(classes, expected)
    assert counts[expected == 0].sum() == 0
    counts, expected = counts[expected > 0], expected[expected > 0]
    return stats.chisquare(counts, expected).pvalue


@pytest.mark.parametrize("params", [{}, {"top_k": 40, "top_p": 0.95}, {"top_p": 0.9}])
@pytest.mark.parametrize("vocab", [5, 1000, 128_256])
def test_draws_pass_the_chi_square_test(vocab, params):
    rows = min(2000, 2**22 // vocab)
    logits = np.random.default_rng(vocab).normal(0, 1, vocab).astype(np.float32)
    device_logits, arrays = repeated(logits, rows), sampling(rows, seeds=3, **params)
    tokens = [
        np.asarray(sample(device_logits, arrays, jnp.arange(start, start + rows, dtype=jnp.int32)))
        for start in range(0, 1000 if vocab > 1000 else 2000, rows)
    ]
    assert p_value(np.concatenate(tokens), probabilities(logits, **params)) > 1e-4
