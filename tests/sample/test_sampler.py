"""Tokens are drawn from the documented distribution, by a random number of (seed, i, t) alone."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pagedjax.sample.ranking import BLOCK, in_blocks
from pagedjax.sample.sampler import (
    SamplingArrays,
    cumulative,
    draw,
    filtered_weights,
    greedy,
    processed_logits,
    sample,
    uniform,
)
from pagedjax.sampling_params import SamplingParams
from pagedjax.schedule.plan import Plan, Row
from pagedjax.schedule.request import Request
from pagedjax.step.batch import Buckets, Packer
from tests.support.numpy_filters import probabilities, reaching

DRAWS = 20_000
JUST_BELOW_ONE = 1 - 2.0**-24  # the largest value of `uniform`

sample = jax.jit(sample)
filtered_weights = jax.jit(filtered_weights)
draw = jax.jit(draw)


def sampling(rows, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seeds=0):
    """SamplingArrays of `rows` rows; a scalar holds for all of them."""

    def filled(value, dtype):
        return jnp.asarray(np.broadcast_to(np.asarray(value, dtype), rows))

    return SamplingArrays(
        slots=filled(0, np.int32),
        num_prompt=filled(0, np.int32),
        seeds=filled(seeds, np.uint32),
        samples=filled(0, np.uint32),
        temperature=filled(temperature, np.float32),
        top_k=filled(top_k, np.int32),
        top_p=filled(top_p, np.float32),
        min_p=filled(min_p, np.float32),
    )


def repeated(logits, rows):
    return jnp.asarray(np.tile(np.asarray(logits, np.float32), (rows, 1)))


def tied_logits(rng, rows, vocab):
    """Logits on a coarse grid, so that most values occur often, with a fifth of them -inf."""
    logits = rng.integers(-6, 7, (rows, vocab)).astype(np.float32) / 2
    logits[rng.random((rows, vocab)) < 0.2] = -np.inf
    logits[np.arange(rows), rng.integers(0, vocab, rows)] = 1.5
    return logits


def distinct_logits(rng, rows, vocab):
    """Nearly all different, on a grid on which float32 makes no error in their differences."""
    return (rng.normal(0, 3, (rows, vocab)) * 2**14 // 1).astype(np.float32) / 2**14


# -- the distribution that is drawn from ----------------------------------------------------------


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


def random_filters(rng, logits, kind):
    """Per row of `logits` random filters of one kind, or all three, away from float32's ties."""
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
            # Tokens that float32 tells apart in the sum.
            params["top_p"] = reaching(left, int(rng.integers(1, (left > 1e-5).sum() + 1)))
        for name, off in (("temperature", 1.0), ("min_p", 0.0), ("top_k", 0), ("top_p", 1.0)):
            chosen[name].append(params.get(name, off))
    return chosen


@pytest.mark.parametrize("vocab", [3, 128, 300, 5000])
@pytest.mark.parametrize("kind", ["min_p", "top_k", "top_p", "all"])
@pytest.mark.parametrize("make_logits", [tied_logits, distinct_logits], ids=["tied", "distinct"])
def test_filters_keep_the_tokens_that_sorting_keeps(make_logits, kind, vocab):
    """1,000 rows of each filter in each sort of logits; far more tokens than are listed too."""
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
    """B45: a threshold keeps four."""
    assert kept_ids([1, 2, 2, 2, 3], top_k=3) == [1, 2, 4]


def test_top_p_counts_only_what_top_k_left():
    # Of 1, 2, 4 the last has 0.58 of the mass; among all five it has only 0.45.
    assert kept_ids([1, 2, 2, 2, 3], top_k=3, top_p=0.5) == [4]


@pytest.mark.parametrize(("top_p", "ids"), [(0.25, [0]), (0.5, [0, 1]), (0.51, [0, 1, 2])])
def test_top_p_that_is_reached_exactly_keeps_no_further_token(top_p, ids):
    assert kept_ids([0, 0, 0, 0], top_p=top_p) == ids


@pytest.mark.parametrize("top_p", [0.01, 1e-30, 1e-38, 1e-40, 1e-45, 1e-60])
def test_top_p_keeps_at_least_one_token(top_p):
    """Numbers below float32's range included, which the contract allows."""
    assert kept_ids([0, 1, 3, 3, 2], top_p=top_p) == [2]


@pytest.mark.parametrize("top_k", [0, -1, 5, 6, 1000])
def test_top_k_of_nothing_or_all_is_off(top_k):
    assert kept_ids([0, 1, 3, 3, 2], top_k=top_k) == [0, 1, 2, 3, 4]


def test_top_k_above_the_tokens_with_weight_draws_none_without():
    assert kept_ids([0, -np.inf, -np.inf, 1], top_k=3) == [0, 3]


def test_min_p_of_one_keeps_all_best_tokens():
    assert kept_ids([0, 3, 1, 3], min_p=1.0) == [1, 3]


@pytest.mark.parametrize("vocab", [1, 2, 127, 129])
def test_filters_hold_at_any_width(vocab):
    """Off, they leave softmax; V of 1 has nothing to choose."""
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


# -- greedy and nearly greedy ---------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1e-4, 1e-5, 1e-12, 1e-38, 1e-45])
def test_tiny_temperatures_draw_the_best_token(temperature):
    """B43: infinities whose difference is NaN."""
    logits = np.asarray([2.875, 2.955, 11.0625], np.float16).astype(np.float32)
    params = sampling(100, temperature=temperature)
    drawn = sample(repeated(logits, 100), params, jnp.arange(100))
    assert np.asarray(drawn).tolist() == [2] * 100


@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"top_k": 5}, {"top_p": 0.9, "top_k": 5}])
def test_greedy_takes_the_lowest_id_of_equals(filters, neighbours):
    """B44: whatever the filters and whoever shares the batch."""
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
    """An infinite logit has all of the mass; where all are -inf none is better than another."""
    logits = jnp.asarray([[0, np.inf, 1, np.inf], [-np.inf] * 4], jnp.float32)
    weights = np.asarray(filtered_weights(logits, sampling(2, **params)))
    assert np.flatnonzero(weights[0]).tolist() == ([1] if params.get("top_p") else [1, 3])
    assert set(weights[1].tolist()) <= {0.0, 1.0} and weights[1, 0] == 1


def test_processed_logits_are_of_the_distribution_that_is_drawn_from():
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


# -- the same row, wherever it stands -------------------------------------------------------------


def mixed_rows(rows, vocab, seed=9):
    """Rows of flat and peaked logits with filters of all sorts."""
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
    """With whoever needs other filters beside it, and as many rows as any bucket has."""
    drawn = mixed_rows(96, vocab)
    together, order = drawn(np.arange(96)), np.random.default_rng(1).permutation(96)
    np.testing.assert_array_equal(drawn(order), together[order])
    for start in range(0, 96, rows):
        at = np.arange(start, start + rows) % 96
        np.testing.assert_array_equal(drawn(at), together[at])


def test_uniforms_and_tokens_are_the_same_bits_on_four_devices():
    """Rows split over four devices, in a process of its own."""
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


# -- chi-square -----------------------------------------------------------------------------------


def p_value(tokens, wanted):
    """Of Pearson's test; tokens are put together until each class expects 20 draws."""
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


# -- the random number ----------------------------------------------------------------------------


def uniforms(seeds, samples, positions):
    shape = np.broadcast_shapes(np.shape(seeds), np.shape(samples), np.shape(positions))
    parts = ((seeds, np.uint32), (samples, np.uint32), (positions, np.int32))
    filled = [jnp.asarray(np.broadcast_to(np.asarray(v, d), shape)) for v, d in parts]
    return np.asarray(uniform(*filled))


@pytest.mark.parametrize("varied", ["seed", "sample", "position"])
def test_uniform_depends_on_each_of_its_numbers(varied):
    numbers = {"seed": 5, "sample": 2, "position": 9} | {varied: np.arange(1000)}
    assert len(np.unique(uniforms(*numbers.values()))) > 990


def test_uniform_does_not_mix_its_numbers_up():
    """The six orders of the same three numbers have six different values."""
    orders = np.array([[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]]).T
    assert len(np.unique(uniforms(*orders))) == 6


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_uniform_tells_the_edges_of_the_seeds_apart(seed):
    others = np.array([0, 1, 2**31 - 1, 2**31, 2**32 - 1])
    same = uniforms(others, 0, 0) == uniforms([seed], 0, 0)
    assert others[same].tolist() == [seed]


def test_uniform_is_in_the_half_open_unit_interval():
    values = uniforms(np.arange(DRAWS), 0, 1)
    assert values.min() >= 0 and values.max() <= JUST_BELOW_ONE


def test_uniform_is_uniform():
    values = uniforms(4, 0, np.arange(DRAWS))
    counts = np.histogram(values, bins=20, range=(0, 1))[0]
    sigma = np.sqrt(DRAWS / 20 * 19 / 20)
    assert (np.abs(counts - DRAWS / 20) <= 4 * sigma).all()


def threefry(key, counter):
    """Threefry-2x32 of 20 rounds, from its paper (Salmon et al. 2011), on Python's ints."""
    keys = [*key, key[0] ^ key[1] ^ 0x1BD11BDA]
    x, y = ((word + k) & 0xFFFFFFFF for word, k in zip(counter, keys[:2], strict=True))
    for turn in range(5):
        for shift in ((13, 15, 26, 6), (17, 29, 16, 24))[turn % 2]:
            x = (x + y) & 0xFFFFFFFF
            y = ((y << shift | y >> (32 - shift)) & 0xFFFFFFFF) ^ x
        x = (x + keys[(turn + 1) % 3]) & 0xFFFFFFFF
        y = (y + keys[(turn + 2) % 3] + turn + 1) & 0xFFFFFFFF
    return x, y


@pytest.mark.parametrize("numbers", [(0, 0, 0), (42, 0, 7), (2**32 - 1, 3, 100_000)])
def test_uniform_is_threefry_of_the_position_under_seed_and_sample(numbers):
    seed, index, position = numbers
    word, _ = threefry((seed, index), (0, position))
    assert uniforms([seed], index, position)[0] == (word >> 8) / 2**24


@pytest.mark.parametrize(
    "setting", [(jax.threefry_partitionable, False), (jax.threefry_partitionable, True),
                (jax.default_prng_impl, "rbg"), (jax.default_prng_impl, "threefry2x32")],
    ids=["not-partitionable", "partitionable", "rbg", "threefry"],
)  # fmt: skip
def test_uniform_ignores_the_settings_of_jax(setting):
    context, value = setting
    word, _ = threefry((42, 1), (0, 7))
    with context(value):
        assert uniforms([42], 1, 7)[0] == (word >> 8) / 2**24


# -- the token of a random number -----------------------------------------------------------------


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
    """Measured 1.5e-7 to 2.5e-7 of the total; summed one after the other it is 100 times that."""
    rng = np.random.default_rng(6)
    weights = np.exp(-spread * rng.random((4, 128_256))).astype(np.float32)
    _, ends = cumulative(in_blocks(jnp.asarray(weights), 0))
    exact = np.cumsum(weights.astype(np.float64), axis=-1)[:, BLOCK - 1 :: BLOCK]
    error = np.abs(np.asarray(ends) - exact) / exact[:, -1:]
    print(f"largest error of the cumulative weights: {error.max():.1e} of the total")
    assert error.max() < 1e-6


# -- from SamplingParams to arrays ----------------------------------------------------------------


def packed(**params):
    """The weights, at logits [0, 1, 2, 3], of a request with these SamplingParams."""
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
