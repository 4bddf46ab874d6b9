"""The random number of a token depends on seed, sample and position alone."""

import jax
import numpy as np
import pytest

from tests.support.sampling_rows import DRAWS, JUST_BELOW_ONE, uniforms


@pytest.mark.parametrize("varied", ["seed", "sample", "position"])
def test_uniform_depends_on_each_of_its_numbers(varied):
    numbers = {"seed": 5, "sample": 2, "position": 9} | {varied: np.arange(1000)}
    assert len(np.unique(uniforms(*numbers.values()))) > 990


def test_uniform_depends_on_the_order_of_its_numbers():
    """The six permutations of three numbers give six different values."""
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
    """Threefry-2x32 with 20 rounds on Python ints, from its paper (Salmon et al. 2011)."""
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
