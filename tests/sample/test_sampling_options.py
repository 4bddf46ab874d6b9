"""Penalties, biases, masks, logprobs and user functions through the engine, against a naive
float64 forward; any mix in one batch, with and without a step in flight."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pagedjax import Engine, EngineConfig, SamplingParams, init_params
from tests.support import numpy_llama
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.tiny_llama import finished, make_engine, tiny
from tests.support.tiny_models import hf_config, hf_tensors

PROMPT = [8, 17, 55, 3, 52, 17, 8, 8]
VOCAB = 128
STEPS = pytest.mark.parametrize("steps_in_flight", [0, 1])


def logits_after(tokens: list[int]) -> np.ndarray:  # [V] float64
    return numpy_llama.forward(hf_config("base"), hf_tensors("base"), tokens)[-1]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def greedy(max_tokens: int = 6, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, **{"ignore_eos": True, **options})


def expected(edit: Any, max_tokens: int = 6) -> list[int]:
    """Greedy ids when `edit(logits, output)` changes the logits of every step."""
    output: list[int] = []
    for _ in range(max_tokens):
        output.append(int(np.argmax(edit(logits_after(PROMPT + output), output))))
    return output


def run(engine: Any, **requests: SamplingParams) -> dict[str, Any]:
    for name, params in requests.items():
        engine.add_request(name, PROMPT, params)
    return {each.request_id: each for each in engine.run()}


@cache
def engine_of(steps_in_flight: int = 1) -> Any:
    """One engine for all tests that need nothing of their own: compiled once."""
    return make_engine(steps_in_flight=steps_in_flight)


def ids(outputs: dict[str, Any], name: str = "a") -> list[int]:
    return outputs[name].outputs[0].token_ids


# -- penalties --


def penalised(repetition: float, presence: float, frequency: float) -> Any:
    def edit(logits: np.ndarray, output: list[int]) -> np.ndarray:
        logits = logits.copy()
        for token in set(PROMPT + output):
            logits[token] *= 1 / repetition if logits[token] > 0 else repetition
        for token in set(output):
            logits[token] -= presence + frequency * output.count(token)
        return logits

    return edit


@STEPS
@pytest.mark.parametrize(
    ("repetition", "presence", "frequency"),
    [(1.7, 0, 0), (0.6, 0, 0), (1, 2.5, 0), (1, 0, 1.5), (1.3, -0.5, 0.7)],
)
def test_penalties(
    repetition: float, presence: float, frequency: float, steps_in_flight: int
) -> None:
    """B47, B48: the prompt counts for repetition alone; the count is never a token late."""
    params = greedy(
        12, repetition_penalty=repetition, presence_penalty=presence,
        frequency_penalty=frequency,
    )  # fmt: skip
    found = run(engine_of(steps_in_flight), a=params, plain=greedy(12))
    wanted = expected(penalised(repetition, presence, frequency), 12)
    assert ids(found) == wanted != ids(found, "plain")
    assert ids(found, "plain") == expected(lambda logits, _: logits, 12)


def test_penalties_survive_preemption_and_slots_change_hands() -> None:
    params = greedy(30, repetition_penalty=1.7, frequency_penalty=0.3)
    engine = make_engine(num_blocks=10, block_size=4, max_num_seqs=2)
    mixed = {f"r{i}": params if i % 2 else greedy(20 + i) for i in range(6)}
    found = run(engine, **mixed)
    assert engine.stats().num_preemptions > 0
    for name, each in mixed.items():
        alone = run(engine_of(), **{name: each})
        assert ids(found, name) == ids(alone, name)


def test_a_fork_and_a_rollback_keep_the_history() -> None:
    params = greedy(10, repetition_penalty=1.9)
    wanted = ids(run(engine_of(), a=params))
    engine = make_engine()
    engine.add_request("a", PROMPT, params)
    for _ in range(6):
        engine.step()
    engine.fork("a", ["b"])
    engine.rollback("a", 2)
    assert finished(engine.run()) == {"a": wanted, "b": wanted}


# -- biases and masks --


def test_logit_bias_and_allowed_ids() -> None:
    def biased(logits: np.ndarray, _: list[int]) -> np.ndarray:
        logits = logits.copy()
        logits[[5, 9]] += [2.5, -50]
        return logits

    def limited(logits: np.ndarray, _: list[int]) -> np.ndarray:
        return np.where(np.isin(np.arange(VOCAB), [4, 60, 61, 99]), logits, -np.inf)

    found = run(
        engine_of(),
        a=greedy(logit_bias={5: 2.5, 9: -50.0}),
        b=greedy(allowed_token_ids=[4, 60, 61, 99]),
        c=SamplingParams(max_tokens=40, allowed_token_ids=[4, 60, 61], seed=1, ignore_eos=True),
    )
    assert ids(found) == expected(biased) and ids(found, "b") == expected(limited)
    assert set(ids(found, "c")) == {4, 60, 61}


@STEPS
@pytest.mark.parametrize("min_tokens", [1, 2, 4])
def test_min_tokens(min_tokens: int, steps_in_flight: int) -> None:
    """B54: what would end the output first is legal as token min_tokens + 1 at the earliest."""
    free = expected(lambda logits, _: logits)
    ends = free[:2]

    def held(logits: np.ndarray, output: list[int]) -> np.ndarray:
        logits = logits.copy()
        if len(output) < min_tokens:
            logits[ends] = -np.inf
        return logits

    wanted = expected(held, 12)
    stop = next((i for i, t in enumerate(wanted) if t in ends), len(wanted) - 1)
    params = greedy(12, min_tokens=min_tokens, stop_token_ids=ends)
    found = run(engine_of(steps_in_flight), a=params, b=greedy(4, min_tokens=3))
    assert ids(found) == wanted[: stop + 1] and len(ids(found)) > min_tokens
    assert ids(found, "b") == free[:4]  # ignore_eos leaves nothing to hold back


@STEPS
def test_bad_words(steps_in_flight: int) -> None:
    """A word of several tokens is forbidden only where its first ones have come."""
    free = expected(lambda logits, _: logits, 8)
    tokenizer = ByteTokenizer()
    words = [bytes(free[1:3]).decode("latin1"), bytes([free[4]]).decode("latin1")]
    banned = [tuple(tokenizer.encode(word, add_special_tokens=False)) for word in words]
    assert banned == [tuple(free[1:3]), (free[4],)]

    def edit(logits: np.ndarray, output: list[int]) -> np.ndarray:
        logits = logits.copy()
        logits[free[4]] = -np.inf
        if output[-1:] == free[1:2]:
            logits[free[2]] = -np.inf
        return logits

    engine = make_engine(tokenizer=tokenizer, steps_in_flight=steps_in_flight)
    found = run(engine, a=greedy(8, bad_words=words), b=greedy(8))
    assert ids(found) == expected(edit, 8) and ids(found, "b") == free


def test_what_is_not_allowed_stays_out_when_all_else_is_forbidden() -> None:
    engine = make_engine(tokenizer=ByteTokenizer())
    params = greedy(4, allowed_token_ids=[65], bad_words=["A"])
    assert ids(run(engine, a=params)) == [65] * 4


@pytest.mark.parametrize("huge", [1e29, 1e38, 1e39, 1e300])
def test_numbers_that_float32_cannot_multiply_are_taken_for_large_ones(huge: float) -> None:
    """As infinities they would turn logits into NaN, and NaN into any token."""
    found = run(
        make_engine(), plain=greedy(), bias=greedy(4, logit_bias={7: huge}),
        bans=greedy(4, logit_bias={each: -huge for each in range(VOCAB) if each != 9}),
        never=greedy(8, frequency_penalty=huge, presence_penalty=huge),
        always=greedy(8, frequency_penalty=-huge), repeated=greedy(8, repetition_penalty=1 / huge),
    )  # fmt: skip
    assert ids(found, "plain") == ids(run(make_engine(), a=greedy()))
    assert ids(found, "bias") == [7] * 4 and ids(found, "bans") == [9] * 4
    assert len(set(ids(found, "never"))) == 8 and len(set(ids(found, "always"))) == 1
    # What has been seen is best, if its logit is positive; a few ids go round and round.
    assert set(ids(found, "repeated")[1:]) <= {*ids(found, "repeated")[:1], *PROMPT}


# -- logprobs --


@STEPS
def test_logprobs_of_sampled_tokens_are_the_models_own(steps_in_flight: int) -> None:
    """Raw, whatever temperature, filters and penalties the draw had (B57)."""
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
    """B32: cold, warm, in chunks; nothing missing, nothing stale, and no effect on others."""
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


# -- scoring --


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
    again = engine.compute_logprobs(lists)  # another call takes nothing from the first
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


# -- user functions --


def nudged(logits: jax.Array, context: Any) -> jax.Array:
    """Adds the row's array, and forbids the token that came last."""
    last = jnp.take_along_axis(context.tokens, context.lengths[:, None] - 1, axis=1)
    repeats = jnp.arange(logits.shape[1], dtype=jnp.int32)[None] == last
    return jnp.where(repeats, -jnp.inf, logits + context.extra["push"])


@STEPS
def test_a_user_function_in_the_step(steps_in_flight: int) -> None:
    push = np.zeros(VOCAB, np.float32)
    engine = make_engine(
        logits_processor=nudged, extra={"push": push}, steps_in_flight=steps_in_flight
    )
    mine = push.copy()
    mine[40] = 4.0
    push[50] = 9.0  # the engine has its own

    def edit(logits: np.ndarray, output: list[int], add: float | np.ndarray = 0.0) -> np.ndarray:
        logits = logits + np.float32(add)
        logits[(PROMPT + output)[-1]] = -np.inf
        return logits

    found = run(engine, a=greedy(8), b=greedy(8, extra={"push": mine}))
    assert ids(found) == expected(edit, 8)
    assert ids(found, "b") == expected(lambda logits, output: edit(logits, output, mine), 8)


@pytest.mark.parametrize(
    ("function", "message"),
    [(lambda logits, context: logits[0], "must return logits"), (lambda logits: logits, "takes 1"),
     (lambda logits, context: context.extra["missing"], "missing")],
)  # fmt: skip
def test_a_broken_user_function_fails_when_the_engine_is_made(function: Any, message: str) -> None:
    with pytest.raises(Exception, match=message):
        make_engine(logits_processor=function)


@pytest.mark.parametrize(
    ("params", "message"),
    [({"extra": {"other": np.zeros(3)}}, r"extra\['other'\] is unknown.*'push'"),
     ({"extra": {"push": np.zeros(3, np.float32)}}, r"float32\[3\].*float32\[128\]"),
     ({"logprobs": 21}, "logprobs=21 exceeds the 20"),
     ({"prompt_logprobs": 21}, "prompt_logprobs=21 exceeds"),
     ({"logit_bias": {128: 1.0}}, "token id 128 in logit_bias"),
     ({"allowed_token_ids": [3, 500]}, "token id 500 in allowed_token_ids"),
     ({"allowed_token_ids": [9], "stop_token_ids": [9], "min_tokens": 1}, "all end the output"),
     ({"bad_words": ["x"]}, "there is no tokenizer")],
)  # fmt: skip
def test_options_that_the_engine_cannot_serve(params: dict, message: str) -> None:
    engine = make_engine(logits_processor=nudged, extra={"push": np.zeros(VOCAB, np.float32)})
    with pytest.raises(ValueError, match=message):
        engine.add_request("a", PROMPT, SamplingParams(**{"max_tokens": 4, **params}))
    assert not engine.has_unfinished_requests()


# -- the whole --


def test_any_mix_in_one_batch_compiles_one_program_a_shape() -> None:
    mixes = {
        "a": greedy(8, repetition_penalty=1.4),
        "b": SamplingParams(max_tokens=8, seed=1, top_p=0.9, logprobs=2, ignore_eos=True),
        "c": SamplingParams(max_tokens=8, seed=2, min_p=0.1, logit_bias={4: 1.0}, ignore_eos=True),
        "d": greedy(8, allowed_token_ids=[5, 6, 7], presence_penalty=1.0, logprobs=0),
        "e": SamplingParams(max_tokens=8, seed=4, top_k=5, min_tokens=4),
        "f": greedy(8),
    }
    together = make_engine()
    found = run(together, **mixes)
    for name, params in mixes.items():
        assert ids(run(engine_of(), **{name: params}), name) == ids(found, name)
    before = together.stats().num_compilations
    swapped = dict(zip(mixes, [*list(mixes.values())[1:], mixes["a"]], strict=True))
    run(together, **swapped)
    assert together.stats().num_compilations == before


def test_outputs_are_strict_json_and_survive_pickle_and_copy() -> None:
    """B55."""
    params = SamplingParams(
        max_tokens=4, top_k=1, logprobs=3, prompt_logprobs=2, logit_bias={3: -100.0}, seed=1,
        ignore_eos=True,
    )  # fmt: skip
    for mode in ("raw", "processed"):
        found = run(make_engine(logprobs_mode=mode), a=params)["a"]
        assert json.loads(json.dumps(dataclasses.asdict(found), allow_nan=False))
        assert pickle.loads(pickle.dumps(found)) == copy.deepcopy(found) == found
    assert pickle.loads(pickle.dumps(params)) == copy.deepcopy(params) == params
