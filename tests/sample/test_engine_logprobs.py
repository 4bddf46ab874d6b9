"""Log probabilities and scores of the engine, compared with a float64 forward pass in numpy."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from pagedjax import Engine, EngineConfig, SamplingParams, init_params
from tests.support import numpy_llama
from tests.support.greedy_reference import PROMPT, engine_of, greedy, log_softmax, logits_after, run
from tests.support.tiny_llama import finished, make_engine, tiny
from tests.support.tiny_models import hf_config, hf_tensors

STEPS = pytest.mark.parametrize("steps_in_flight", [0, 1])


@STEPS
def test_logprobs_of_sampled_tokens_are_the_models_own(steps_in_flight: int) -> None:
    """Raw logprobs do not depend on temperature, filters and penalties of the draw."""
    params = SamplingParams(
        temperature=0.5, top_k=20, repetition_penalty=1.5, seed=3, max_tokens=8, logprobs=3,
        ignore_eos=True,
    )  # fmt: skip
    found = run(engine_of(steps_in_flight), a=params, b=greedy(logprobs=0))
    completion = found["a"].outputs[0]
    total = 0.0
    for index, each in enumerate(completion.logprobs):
        token = completion.token_ids[index]
        wanted = log_softmax(logits_after(PROMPT + completion.token_ids[:index]))
        best = np.argsort(-wanted, kind="stable")[:3].tolist()
        assert list(each) == list(dict.fromkeys([token, *best]))
        for key, value in each.items():
            assert value.logprob == pytest.approx(wanted[key], abs=1e-4)
            assert value.rank == 1 + (wanted > wanted[key]).sum()
        total += each[token].logprob
    assert completion.cumulative_logprob == pytest.approx(total)
    assert [len(each) for each in found["b"].outputs[0].logprobs] == [1] * 6


def test_processed_logprobs_are_those_of_the_draw() -> None:
    engine = make_engine(logprobs_mode="processed")
    params = SamplingParams(
        temperature=0.5, top_k=4, logit_bias={7: 3.0}, seed=3, max_tokens=5, logprobs=6,
        ignore_eos=True,
    )  # fmt: skip
    found = run(engine, a=params)["a"].outputs[0]
    for index, each in enumerate(found.logprobs):
        logits = logits_after(PROMPT + found.token_ids[:index])
        logits[7] += 3.0
        logits[np.argsort(-logits, kind="stable")[4:]] = -np.inf
        wanted = log_softmax(logits / 0.5)
        for key, value in each.items():
            assert value.logprob == pytest.approx(max(wanted[key], -9999.0), abs=2e-4)


@pytest.mark.parametrize(
    ("budget", "mode"), [(1, "raw"), (4, "processed"), (5, "raw"), (256, "raw")]
)
def test_prompt_logprobs(budget: int, mode: str) -> None:
    """With a cold and a warm cache and in chunks, without effect on other requests."""
    prompt = PROMPT * 3
    wanted = log_softmax(numpy_llama.forward(hf_config("base"), hf_tensors("base"), prompt))
    engine = make_engine(block_size=4, max_num_batched_tokens=budget, logprobs_mode=mode)
    for name in ("cold", "warm"):
        engine.add_request(f"{name} plain", prompt, greedy(2))
        engine.add_request(name, prompt, greedy(2, prompt_logprobs=2))
        outputs = {each.request_id: each for each in engine.run()}
        assert outputs[f"{name} plain"].prompt_logprobs is None
        found = outputs[name].prompt_logprobs
        assert len(found) == len(prompt) and found[0] is None
        for index, each in enumerate(found[1:]):
            best = np.argsort(-wanted[index], kind="stable")[:2].tolist()
            assert list(each) == list(dict.fromkeys([prompt[index + 1], *best]))
            for token, value in each.items():
                assert value.logprob == pytest.approx(wanted[index, token], abs=1e-4)
        assert (
            finished([outputs[name]])[name] == finished([outputs[f"{name} plain"]])[f"{name} plain"]
        )


def test_prompt_logprobs_survive_preemption_and_samples() -> None:
    engine = make_engine(num_blocks=9, block_size=4, max_num_seqs=4)
    params = SamplingParams(max_tokens=20, seed=5, n=2, prompt_logprobs=0, ignore_eos=True)
    for name in "ab":
        engine.add_request(name, PROMPT, params)
    outputs = engine.run()
    wanted = log_softmax(numpy_llama.forward(hf_config("base"), hf_tensors("base"), PROMPT))
    for output in outputs:
        for index, each in enumerate(output.prompt_logprobs[1:]):
            token = PROMPT[index + 1]
            assert each[token].logprob == pytest.approx(wanted[index, token], abs=1e-4)


def test_a_vocabulary_smaller_than_max_logprobs() -> None:
    config = dataclasses.replace(tiny("base")[0], vocab_size=11, eos_token_ids=())
    params = init_params(config, jax.random.key(0), "float32")
    options = EngineConfig(num_blocks=8, max_num_seqs=2, max_num_batched_tokens=8)
    engine = Engine(config, params, options)
    engine.add_request("a", [3, 4], SamplingParams(max_tokens=2, logprobs=11, prompt_logprobs=1))
    (found,) = engine.run()
    assert all(len(each) == 11 for each in found.outputs[0].logprobs)


@pytest.mark.parametrize("vocab_size", [pytest.param(128, marks=pytest.mark.slow), 130])
def test_max_logprobs_beyond_the_vocabulary_reports_all_of_it(vocab_size: int) -> None:
    config = dataclasses.replace(tiny("base")[0], vocab_size=vocab_size, eos_token_ids=())
    params = init_params(config, jax.random.key(0), "float32")
    options = EngineConfig(num_blocks=8, max_num_seqs=1, max_num_batched_tokens=8, max_logprobs=300)
    engine = Engine(config, params, options)
    engine.warmup()
    sampling = greedy(2, logprobs=vocab_size, prompt_logprobs=vocab_size, presence_penalty=1.0)
    with engine.assert_no_compilation():
        found = run(engine, a=sampling)["a"]
    listed = [*found.outputs[0].logprobs, *found.prompt_logprobs[1:]]
    assert [len(each) for each in listed] == [vocab_size] * len(listed)
    with pytest.raises(ValueError, match=f"logprobs={vocab_size + 1} exceeds the {vocab_size}"):
        run(engine, b=greedy(2, logprobs=vocab_size + 1))


def test_sampled_and_scored_logprobs_agree() -> None:
    engine = engine_of()
    found = run(engine, a=SamplingParams(max_tokens=20, seed=7, logprobs=0, ignore_eos=True))
    completion = found["a"].outputs[0]
    (scores,) = engine.compute_logprobs([PROMPT + completion.token_ids])
    sampled = [
        each[token].logprob
        for each, token in zip(completion.logprobs, completion.token_ids, strict=True)
    ]
    np.testing.assert_allclose(scores[len(PROMPT) - 1 :], sampled, atol=1e-4)


@pytest.mark.parametrize("budget", [5, 512])
def test_lists_that_begin_alike_are_scored_once(budget: int) -> None:
    prompt = [int(token) for token in np.random.default_rng(0).integers(3, 120, 40)]
    lists = [prompt + [i, i + 1, 2 * i] for i in range(3, 11)] + [prompt, prompt[:20], [5], prompt]
    engine = make_engine(block_size=4, max_num_batched_tokens=budget)
    plain = make_engine(block_size=4, enable_prefix_caching=False)
    found, wanted = engine.compute_logprobs(lists), plain.compute_logprobs(lists)
    assert engine.stats().steps and len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    again = engine.compute_logprobs(lists)  # a second call reuses nothing from the first
    for ours, theirs in zip(found, again, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_scores_as_device_arrays() -> None:
    lists = [PROMPT, [5], PROMPT[:3]]
    engine = engine_of()
    tokens, logprobs, mask = engine.compute_logprobs(lists, return_arrays=True)
    assert isinstance(logprobs, jax.Array) and logprobs.shape == mask.shape == (3, 7)
    assert mask.sum(axis=1).tolist() == [7, 0, 2] and tokens[0].tolist() == PROMPT
    for row, wanted in enumerate(engine.compute_logprobs(lists)):
        np.testing.assert_array_equal(logprobs[row, : len(wanted)], wanted)
    assert not np.asarray(logprobs)[~np.asarray(mask)].any()
