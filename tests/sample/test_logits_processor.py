"""User functions on the logits, and sampling options that the engine refuses."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pagedjax import SamplingParams
from tests.support.greedy_reference import PROMPT, VOCAB, expected, greedy, ids, run
from tests.support.tiny_llama import make_engine

STEPS = pytest.mark.parametrize("steps_in_flight", [0, 1])


def nudged(logits: jax.Array, context: Any) -> jax.Array:
    """Add the row's extra array and forbid the last token."""
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
    push[50] = 9.0  # the engine has a copy of its own

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
