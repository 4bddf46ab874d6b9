"""`draw` maps a random number in [0, 1) to a token by cumulative weight."""

import jax.numpy as jnp
import numpy as np
import pytest

from pagedjax.sample.ranking import BLOCK, in_blocks
from pagedjax.sample.sampler import cumulative
from tests.support.sampling_rows import JUST_BELOW_ONE, draw, repeated


def drawn(weights, values):
    return np.asarray(draw(repeated(weights, len(values)), jnp.asarray(values, jnp.float32)))


WEIGHTS = {
    "one": [0.5],
    "zeros around": [0, 0, 0.5, 0, 0.25, 1, 0],
    "only the last": [0] * 40 + [1],
    "blocks without weight": [0] * 130 + [0.5] + [0] * 300 + [0.25, 0] + [0] * 200,
    "tiny beside large": [1e-30, 0, 1, 0, 1e-30],
}


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
def test_draw_never_takes_a_token_without_weight(weights):
    tokens = drawn(weights, np.append(np.linspace(0, 1, 997, endpoint=False), JUST_BELOW_ONE))
    assert set(tokens.tolist()) <= set(np.flatnonzero(weights).tolist())


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
def test_draw_takes_the_first_token_with_weight_at_zero(weights):
    assert drawn(weights, [0.0]).tolist() == [np.flatnonzero(weights)[0]]


@pytest.mark.parametrize("vocab", [1, 127, 128, 129, 1000])
def test_draw_takes_the_last_token_with_weight_just_below_one(vocab):
    weights = np.random.default_rng(vocab).uniform(0.5, 1, vocab + 9)
    weights[vocab:] = 0
    assert drawn(weights, [JUST_BELOW_ONE]).tolist() == [vocab - 1]


def test_draw_changes_token_exactly_at_the_cumulative_weight():
    below = np.nextafter(np.float32([0.25, 0.375, 0.5]), np.float32(0))
    tokens = drawn([0.25, 0.125, 0.125, 0.5], [0.25, 0.375, 0.5, *below])
    assert tokens.tolist() == [1, 2, 3, 0, 1, 2]


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_draw_has_the_boundaries_of_float64_over_a_large_vocabulary(spread):
    rng = np.random.default_rng(5)
    weights = np.exp(-spread * rng.random(128_256)).astype(np.float32)
    ends = np.cumsum(weights.astype(np.float64))
    values = np.append((rng.random(200) * 2**24 // 1) / 2**24, [0, JUST_BELOW_ONE])
    tokens = drawn(weights, values)
    starts = ends[tokens] - weights[tokens]
    error = np.maximum(starts - values * ends[-1], values * ends[-1] - ends[tokens])
    assert (error <= 1e-5 * values * ends[-1]).all()


@pytest.mark.parametrize("spread", [0.0, 1.0, 12.0])
def test_cumulative_weights_of_a_large_vocabulary_are_those_of_float64(spread):
    """Measured error: 1.5e-7 to 2.5e-7 of the total; a sequential sum has 100 times that."""
    rng = np.random.default_rng(6)
    weights = np.exp(-spread * rng.random((4, 128_256))).astype(np.float32)
    _, ends = cumulative(in_blocks(jnp.asarray(weights), 0))
    exact = np.cumsum(weights.astype(np.float64), axis=-1)[:, BLOCK - 1 :: BLOCK]
    error = np.abs(np.asarray(ends) - exact) / exact[:, -1:]
    print(f"largest error of the cumulative weights: {error.max():.1e} of the total")
    assert error.max() < 1e-6
