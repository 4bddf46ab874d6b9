"""Penalties, biases and masks in the engine, compared with a float64 forward pass in numpy."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from typing import Any

import numpy as np
import pytest

from pagedjax import SamplingParams
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.greedy_reference import PROMPT, VOCAB, engine_of, expected, greedy, ids, run
from tests.support.tiny_llama import finished, make_engine

STEPS = pytest.mark.parametrize("steps_in_flight", [0, 1])


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
    """Only repetition counts the prompt; every penalty counts the latest token."""
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
    """Tokens that end the output are allowed from token min_tokens + 1 on."""
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
    assert ids(found, "b") == free[:4]  # with ignore_eos no token ends the output


@STEPS
def test_bad_words(steps_in_flight: int) -> None:
    """The last token of a bad word is forbidden only after its preceding tokens."""
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


def test_tokens_that_are_not_allowed_stay_out_if_all_others_are_forbidden() -> None:
    engine = make_engine(tokenizer=ByteTokenizer())
    params = greedy(4, allowed_token_ids=[65], bad_words=["A"])
    assert ids(run(engine, a=params)) == [65] * 4


@pytest.mark.parametrize("huge", [1e29, 1e38, 1e39, 1e300])
def test_numbers_too_large_for_float32_act_as_large_numbers(huge: float) -> None:
    """Converted to infinities, they would make logits NaN and the choice arbitrary."""
    found = run(
        make_engine(), plain=greedy(), bias=greedy(4, logit_bias={7: huge}),
        bans=greedy(4, logit_bias={each: -huge for each in range(VOCAB) if each != 9}),
        never=greedy(8, frequency_penalty=huge, presence_penalty=huge),
        always=greedy(8, frequency_penalty=-huge), repeated=greedy(8, repetition_penalty=1 / huge),
    )  # fmt: skip
    assert ids(found, "plain") == ids(run(make_engine(), a=greedy()))
    assert ids(found, "bias") == [7] * 4 and ids(found, "bans") == [9] * 4
    assert len(set(ids(found, "never"))) == 8 and len(set(ids(found, "always"))) == 1
    # Tokens that were seen and have positive logits are best, so a few ids repeat.
    assert set(ids(found, "repeated")[1:]) <= {*ids(found, "repeated")[:1], *PROMPT}


def test_any_mix_in_one_batch_compiles_one_program_per_shape() -> None:
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
    params = SamplingParams(
        max_tokens=4, top_k=1, logprobs=3, prompt_logprobs=2, logit_bias={3: -100.0}, seed=1,
        ignore_eos=True,
    )  # fmt: skip
    for mode in ("raw", "processed"):
        found = run(make_engine(logprobs_mode=mode), a=params)["a"]
        assert json.loads(json.dumps(dataclasses.asdict(found), allow_nan=False))
        assert pickle.loads(pickle.dumps(found)) == copy.deepcopy(found) == found
    assert pickle.loads(pickle.dumps(params)) == copy.deepcopy(params) == params
