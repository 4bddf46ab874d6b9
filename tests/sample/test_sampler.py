"""Greedy and random rows: ties, extreme logits, processed logits, and independence of the batch."""

import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from pagedjax.sample.sampler import greedy, processed_logits
from tests.support.numpy_filters import probabilities
from tests.support.sampling_rows import (
    filtered_weights,
    repeated,
    sample,
    sampling,
    tied_logits,
    uniforms,
)


@pytest.mark.parametrize("temperature", [1e-4, 1e-5, 1e-12, 1e-38, 1e-45])
def test_tiny_temperatures_draw_the_best_token(temperature):
    """Dividing logits by such a temperature overflows, and inf - inf is NaN."""
    logits = np.asarray([2.875, 2.955, 11.0625], np.float16).astype(np.float32)
    params = sampling(100, temperature=temperature)
    drawn = sample(repeated(logits, 100), params, jnp.arange(100))
    assert np.asarray(drawn).tolist() == [2] * 100


@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"top_k": 5}, {"top_p": 0.9, "top_k": 5}])
def test_greedy_takes_the_lowest_id_of_equals(filters, neighbours):
    """With any filters and beside any other rows."""
    temperature = np.where(np.arange(1000) % 2, float(neighbours), 0.0)
    params = sampling(1000, temperature=temperature, **filters)
    drawn = np.asarray(sample(repeated([1, 1, 0], 1000), params, jnp.arange(1000)))
    assert set(drawn[temperature == 0].tolist()) == {0}


def test_a_random_row_ignores_its_greedy_neighbours():
    logits = jnp.asarray(np.random.default_rng(2).normal(0, 1, (64, 50)).astype(np.float32))
    positions = jnp.arange(64, dtype=jnp.int32)
    alone = np.asarray(sample(logits, sampling(64), positions))
    random = np.arange(64) % 2 == 1
    mixed = np.asarray(sample(logits, sampling(64, temperature=random), positions))
    np.testing.assert_array_equal(mixed[random], alone[random])


def test_a_row_is_drawn_alike_in_any_place_of_the_batch():
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 1, (64, 50)).astype(np.float32)
    positions, seeds = rng.integers(0, 1000, 64), rng.integers(0, 2**32, 64)
    order = rng.permutation(64)

    def drawn(at):
        params = sampling(64, seeds=seeds[at], top_p=0.9)
        return np.asarray(sample(jnp.asarray(logits[at]), params, jnp.asarray(positions[at])))

    np.testing.assert_array_equal(drawn(order), drawn(np.arange(64))[order])


def test_greedy_takes_the_lowest_id_of_the_largest():
    rng = np.random.default_rng(4)
    logits = rng.integers(-3, 4, (1000, 300)).astype(np.float32)
    logits[rng.random(logits.shape) < 0.3] = -np.inf
    logits[logits == 0] = rng.choice([0.0, -0.0], (logits == 0).sum())
    tokens = np.asarray(greedy(jnp.asarray(logits)))
    np.testing.assert_array_equal(tokens, logits.argmax(axis=-1))


@pytest.mark.parametrize("params", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}])
def test_infinite_logits_do_not_make_nan(params):
    """An infinite logit has all of the mass; a row of -inf is treated as a tie."""
    logits = jnp.asarray([[0, np.inf, 1, np.inf], [-np.inf] * 4], jnp.float32)
    weights = np.asarray(filtered_weights(logits, sampling(2, **params)))
    assert np.flatnonzero(weights[0]).tolist() == ([1] if params.get("top_p") else [1, 3])
    assert set(weights[1].tolist()) <= {0.0, 1.0} and weights[1, 0] == 1


def test_processed_logits_give_the_distribution_of_the_draw():
    rng = np.random.default_rng(8)
    logits = tied_logits(rng, 300, 50)
    params = {"temperature": 0.5, "min_p": 0.01, "top_k": 9, "top_p": 0.9}
    found = np.asarray(processed_logits(jnp.asarray(logits), sampling(300, **params)), np.float64)
    wanted = np.stack([probabilities(row, **params) for row in logits])
    shares = np.exp(found) / np.exp(found).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(shares, wanted, rtol=1e-5)


def test_processed_logits_of_a_greedy_row_are_certain_of_its_token():
    logits = repeated([1, 3, 3, 2], 2)
    found = processed_logits(logits, sampling(2, temperature=[0, 1]))
    assert np.exp(found)[0].tolist() == [0, 1, 0, 0]
    assert (np.exp(found)[1] > 0).all()


def mixed_rows(rows, vocab, seed=9):
    """A function that draws given rows of a batch of flat and peaked logits with all filters."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1, (rows, vocab)) * rng.choice([0.1, 1, 4], (rows, 1))
    logits[::5] = np.round(logits[::5])
    params = {
        "temperature": rng.choice([0, 0.7, 1, 2.5], rows),
        "top_k": rng.choice([0, 1, 40, 64, 65, 500, vocab], rows),
        "top_p": rng.choice([1, 0.95, 0.5, 1e-6, 1 - 2.0**-24], rows),
        "min_p": rng.choice([0, 0, 0.01], rows),
        "seeds": rng.integers(0, 2**32, rows),
    }
    positions = rng.integers(0, 1000, rows)

    def drawn(at):
        arrays = sampling(len(at), **{name: values[at] for name, values in params.items()})
        chosen = jnp.asarray(logits[at].astype(np.float32))
        return np.asarray(sample(chosen, arrays, jnp.asarray(positions[at], jnp.int32)))

    return drawn


@pytest.mark.parametrize(
    ("vocab", "rows"), [(700, 1), pytest.param(4096, 2, marks=pytest.mark.slow), (4096, 24)]
)
def test_a_row_draws_alike_alone_permuted_and_in_any_row_bucket(vocab, rows):
    """Beside rows with other filters, and in batches of several sizes."""
    drawn = mixed_rows(96, vocab)
    together, order = drawn(np.arange(96)), np.random.default_rng(1).permutation(96)
    np.testing.assert_array_equal(drawn(order), together[order])
    for start in range(0, 96, rows):
        at = np.arange(start, start + rows) % 96
        np.testing.assert_array_equal(drawn(at), together[at])


def test_uniforms_and_tokens_are_the_same_bits_on_four_devices():
    """Rows are sharded over four devices in a separate process."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    lines = subprocess.run(
        [sys.executable, "-c", FOUR_DEVICES], env=os.environ | flags,
        cwd=Path(__file__).parents[2], check=True, capture_output=True, text=True, timeout=300,
    ).stdout.split("\n")  # fmt: skip
    seeds = np.arange(16) * 268_435_399
    numbers = uniforms(seeds, np.arange(16) % 3, np.arange(16) * 7)
    assert lines[0] == "4"
    assert lines[1] == numbers.tobytes().hex()
    assert lines[2] == lines[3]


FOUR_DEVICES = """
import dataclasses, jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pagedjax.sample.sampler import SamplingArrays, sample, uniform
print(jax.device_count())
at = np.arange(16)
arrays = SamplingArrays(
    slots=at.astype(np.int32), num_prompt=at.astype(np.int32),
    seeds=(at * 268_435_399).astype(np.uint32), samples=(at % 3).astype(np.uint32),
    temperature=np.float32(0.5 + at % 4), top_k=np.int32(at % 5 * 100),
    top_p=np.float32(1 - at % 3 / 10), min_p=np.float32(at % 2 / 100),
)
positions = (at * 7).astype(np.int32)
logits = np.random.default_rng(0).normal(0, 2, (16, 2000)).astype(np.float32)
rows = NamedSharding(Mesh(np.array(jax.devices()), "rows"), PartitionSpec("rows"))
split = jax.device_put((logits, arrays, positions), rows)
numbers = jax.jit(uniform)(split[1].seeds, split[1].samples, split[2])
assert len(numbers.addressable_shards) == 4 and numbers.addressable_shards[0].data.shape == (4,)
print(np.asarray(numbers).tobytes().hex())
for each in ((logits, arrays, positions), split):
    print(np.asarray(jax.jit(sample)(*each)).tobytes().hex())
"""
