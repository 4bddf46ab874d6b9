"""The id that ends an output stays in the ids; its text is left out by default, as in vLLM."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pagedjax import SamplingParams
from pagedjax.engine import Engine
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.tiny_llama import make_engine

PROMPT = [5, 6, 7, 8]


class WithEos(ByteTokenizer):
    """A tokenizer that names an end-of-sequence id of its own."""

    def __init__(self, eos_token_id: Any) -> None:
        super().__init__()
        self.eos_token_id = eos_token_id


def run(engine: Engine, **options: Any) -> Any:
    engine.add_request("a", PROMPT, SamplingParams(temperature=0, max_tokens=12, **options))
    return engine.run()[-1].outputs[0]


@pytest.fixture(scope="module")
def free() -> Any:
    """The output without anything that ends it."""
    return run(make_engine(tokenizer=ByteTokenizer()), ignore_eos=True)


def first_time(ids: list[int]) -> int:
    """An index above 3 whose id does not occur before it."""
    return next(i for i in range(4, len(ids)) if ids[i] not in ids[:i])


@pytest.mark.parametrize("include", [False, True])
def test_the_text_of_a_stop_id(free: Any, include: bool) -> None:
    end = first_time(free.token_ids)
    output = run(
        make_engine(tokenizer=ByteTokenizer()), ignore_eos=True,
        stop_token_ids=[free.token_ids[end]], include_stop_str_in_output=include,
    )  # fmt: skip
    assert output.token_ids == free.token_ids[: end + 1]
    assert (output.finish_reason, output.stop_reason) == ("stop", free.token_ids[end])
    shown = free.token_ids[: end + include]
    assert output.text == ByteTokenizer().decode([*PROMPT, *shown])[len(text_of(PROMPT)) :]


def text_of(ids: list[int]) -> str:
    return ByteTokenizer().decode(ids)


def test_an_id_that_only_the_tokenizer_names_ends_the_output(free: Any) -> None:
    end = first_time(free.token_ids)
    engine = make_engine(tokenizer=WithEos(free.token_ids[end]))
    output = run(engine)
    assert output.token_ids == free.token_ids[: end + 1]
    assert (output.finish_reason, output.stop_reason) == ("stop", None)
    assert output.text == text_of([*PROMPT, *free.token_ids[:end]])[len(text_of(PROMPT)) :]
    assert run(engine, ignore_eos=True).token_ids == free.token_ids
    long = run(engine, min_tokens=end + 3)  # it is not drawn before
    assert len(long.token_ids) >= end + 3


@pytest.mark.parametrize("named", [None, -1, 10**9, "</s>"])
def test_an_end_id_that_cannot_be_drawn_changes_nothing(free: Any, named: Any) -> None:
    engine = make_engine(tokenizer=WithEos(named))
    config = dataclasses.replace(engine.model_config)
    assert engine.intake.eos_ids == frozenset(config.eos_token_ids)
