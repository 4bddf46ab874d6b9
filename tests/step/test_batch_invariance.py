"""`batch_invariant=True`: a request's results are bit-identical alone and among others, with and
without prefix hits, chunked prefill and preemption."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from pagedjax import Engine, EngineConfig, ModelConfig, SamplingParams, init_params
from pagedjax.step import invariance
from pagedjax.step.batch import Buckets
from pagedjax.step.invariance import invariant_buckets

# Widths of SmolLM2. In much narrower products, rounding depends on the number of rows.
WIDE = ModelConfig(
    1000, 576, 1536, 2, 9, 3, 64, max_position_embeddings=512, initializer_range=0.05
)

DTYPES = pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
PARAMS = SamplingParams(
    temperature=0.8, top_p=0.9, seed=7, max_tokens=30, ignore_eos=True, logprobs=3
)
GREEDY = replace(PARAMS, temperature=0.0)


def make(dtype, mesh_of_params=None, **options):
    params = init_params(WIDE, jax.random.key(1), dtype)
    if mesh_of_params is not None:
        params = jax.device_put(params, NamedSharding(mesh_of_params, PartitionSpec()))
    options = {"num_blocks": 200, "max_num_seqs": 12, "block_size": 8, **options}
    return Engine(WIDE, params, EngineConfig(batch_invariant=True, **options))


def prompts():
    rng = np.random.RandomState(3)
    return [rng.randint(3, 250, length).tolist() for length in (45, 5, 130, 17, 64, 29, 90, 8)]


def results(engine, requests):
    """Token ids and the bytes of log probabilities of requests that are added together."""
    for index, (prompt, params) in enumerate(requests):
        engine.add_request(str(index), prompt, params)
    found = {each.request_id: each.outputs[0] for each in engine.run()}
    return [
        (
            found[str(index)].token_ids,
            [
                [(token, np.float32(each.logprob).tobytes()) for token, each in place.items()]
                for place in found[str(index)].logprobs
            ],
        )
        for index in range(len(requests))
    ]


@DTYPES
@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 64, "num_blocks": 34},
        pytest.param({}, marks=pytest.mark.slow),  # more shapes to compile
    ],
)
def test_results_are_the_same_alone_and_among_others(dtype, options):
    requests = [(prompt, [PARAMS, GREEDY][i % 2]) for i, prompt in enumerate(prompts())]
    engine = make(dtype, **options)
    alone = [results(engine, [each])[0] for each in requests]
    engine.reset_prefix_cache()
    assert results(engine, requests) == alone, "together"
    assert (engine.stats().num_preemptions > 0) == ("num_blocks" in options)
    hits = engine.stats().prefix_hit_tokens
    assert results(engine, requests[::-1]) == alone[::-1], "with prefix hits, in another order"
    assert engine.stats().prefix_hit_tokens > hits


def test_neighbours_with_every_option_change_no_bit():
    params = replace(GREEDY, max_tokens=8)
    engine = make(jnp.float32, max_num_batched_tokens=64)
    (alone,) = results(engine, [(prompts()[0], params)])
    others = [
        replace(params, presence_penalty=1.0), replace(params, logit_bias={5: 4.0}),
        replace(params, temperature=1.5, top_k=5, seed=1), replace(params, logprobs=0),
    ]  # fmt: skip
    requests = [(prompts()[0], params), *((prompts()[3], each) for each in others)]
    assert results(engine, requests)[0] == alone


def test_shapes_with_other_results_are_left_out():
    explicit = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
    engine = make(jnp.float32, explicit, max_num_seqs=4, max_num_batched_tokens=16)
    least = engine._runner.buckets.least_rows
    assert least == engine._runner.buckets.row_buckets[0]
    assert all(shape.decode_rows >= least for shape in engine._runner.buckets.shapes())


def test_a_device_without_invariant_shapes_is_refused(monkeypatch):
    monkeypatch.setattr(
        invariance._Trial, "bits", lambda self, shape, largest: [bytes([shape.tokens > 0])]
    )
    with pytest.raises(ValueError, match="batch_invariant=True cannot be had"):
        make(jnp.float32, max_num_seqs=64)


def test_least_rows_is_the_smallest_from_which_all_shapes_agree(monkeypatch):
    monkeypatch.setattr(
        invariance._Trial, "bits", lambda self, shape, largest: [bytes([shape.decode_rows < 20])]
    )
    runner = make(jnp.float32, max_num_seqs=64)._runner
    assert runner.buckets.least_rows == 32
    assert runner.buckets.row_buckets == (32, 48, 64)
    found = invariant_buckets(Buckets(64, 128), runner._step_config, runner.params, 8, "float32")
    assert found.least_rows == 32


@pytest.mark.parametrize("attention", ["pallas", "pallas_interpret"])
def test_kernels_are_refused(attention):
    with pytest.raises(ValueError, match="supported: 'xla'"):
        EngineConfig(batch_invariant=True, attention=attention)
    with pytest.raises(ValueError, match="batch_invariant=1"):
        EngineConfig(batch_invariant=1)
