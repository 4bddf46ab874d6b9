"""Log probabilities, ranks and best tokens, compared with numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pagedjax.sample.logprobs import token_logprobs
from pagedjax.sample.sampler import processed_logits
from tests.support.sampling_rows import repeated, sampling, tied_logits

token_logprobs = jax.jit(token_logprobs, static_argnums=2)


def log_softmax(logits):
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize(("vocab", "count"), [(5, 5), (30, 0), (300, 3), (1000, 20)])
def test_logprobs_are_those_of_numpy(vocab, count):
    """1,000 rows with ties and -inf; in some rows all logits are equal."""
    rng = np.random.default_rng(vocab)
    logits = tied_logits(rng, 1000, vocab)
    logits[::9] = -2.5
    tokens = rng.integers(0, vocab, 1000).astype(np.int32)
    found = token_logprobs(jnp.asarray(logits), jnp.asarray(tokens), count)
    wanted, chosen = log_softmax(logits), logits[np.arange(1000), tokens][:, None]
    best = np.argsort(-logits, axis=-1, kind="stable")[:, :count]
    np.testing.assert_allclose(found.logprob, wanted[np.arange(1000), tokens], atol=2e-6)
    np.testing.assert_array_equal(found.rank, 1 + (logits > chosen).sum(axis=-1))
    np.testing.assert_array_equal(found.ids, best)
    np.testing.assert_allclose(found.logprobs, np.take_along_axis(wanted, best, -1), atol=2e-6)


@pytest.mark.parametrize(("mode", "wanted"), [("raw", -0.40761), ("processed", -0.14293)])
def test_modes_of_logprobs(mode, wanted):
    """Logits [1, 2, 3], temperature 0.5, token 2."""
    logits = repeated([1, 2, 3], 1)
    if mode == "processed":
        logits = processed_logits(logits, sampling(1, temperature=0.5))
    found = token_logprobs(logits, jnp.asarray([2], jnp.int32), 3)
    np.testing.assert_allclose(found.logprob, [wanted], atol=5e-6)
    assert found.rank.tolist() == [1] and found.ids.tolist() == [[2, 1, 0]]


def test_processed_logprobs_of_filtered_tokens_are_minus_infinity():
    logits = processed_logits(repeated([0, 3, 1, 3], 1), sampling(1, top_k=2))
    found = token_logprobs(logits, jnp.asarray([3], jnp.int32), 4)
    np.testing.assert_allclose(found.logprobs, [[np.log(0.5)] * 2 + [-np.inf] * 2], rtol=1e-6)
    assert found.ids.tolist() == [[1, 3, 0, 2]] and found.rank.tolist() == [1]


def test_processed_logprobs_of_a_greedy_row_are_certain():
    logits = processed_logits(repeated([0, 3, 1, 3], 1), sampling(1, temperature=0))
    found = token_logprobs(logits, jnp.asarray([1], jnp.int32), 2)
    assert found.logprob.tolist() == [0] and found.logprobs.tolist() == [[0, -np.inf]]


def test_the_largest_vocabulary():
    """Ranks and float32 sums over many blocks."""
    logits = np.random.default_rng(1).normal(0, 1, (2, 128_256)).astype(np.float32)
    tokens = np.array([logits[0].argmin(), 77], np.int32)
    found = token_logprobs(jnp.asarray(logits), jnp.asarray(tokens), 5)
    assert found.rank[0] == 128_256
    np.testing.assert_allclose(found.logprob, log_softmax(logits)[[0, 1], tokens], rtol=1e-6)
