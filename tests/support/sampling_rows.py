"""Rows of logits, their sampling parameters, and the jitted functions of the sampler."""

import jax
import jax.numpy as jnp
import numpy as np

from pagedjax.sample import sampler
from pagedjax.sample.sampler import SamplingArrays, uniform

DRAWS = 20_000
JUST_BELOW_ONE = 1 - 2.0**-24  # the largest value of `uniform`

sample = jax.jit(sampler.sample)
filtered_weights = jax.jit(sampler.filtered_weights)
draw = jax.jit(sampler.draw)


def sampling(rows, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seeds=0):
    """SamplingArrays of `rows` rows; a scalar applies to all rows."""

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
    """Logits on a coarse grid, so that most values are tied; a fifth of them is -inf."""
    logits = rng.integers(-6, 7, (rows, vocab)).astype(np.float32) / 2
    logits[rng.random((rows, vocab)) < 0.2] = -np.inf
    logits[np.arange(rows), rng.integers(0, vocab, rows)] = 1.5
    return logits


def distinct_logits(rng, rows, vocab):
    """Mostly distinct logits on a grid on which float32 differences are exact."""
    return (rng.normal(0, 3, (rows, vocab)) * 2**14 // 1).astype(np.float32) / 2**14


def uniforms(seeds, samples, positions):
    shape = np.broadcast_shapes(np.shape(seeds), np.shape(samples), np.shape(positions))
    parts = ((seeds, np.uint32), (samples, np.uint32), (positions, np.int32))
    filled = [jnp.asarray(np.broadcast_to(np.asarray(v, d), shape)) for v, d in parts]
    return np.asarray(uniform(*filled))
