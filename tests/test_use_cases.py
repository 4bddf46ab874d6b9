"""Calls as they are written for other engines: prompts as dicts, `max_tokens=None`, options."""

from __future__ import annotations

import inspect
from typing import Any, Unpack, get_type_hints

import pytest

from pagedjax import LLM, EngineConfig, SamplingParams
from pagedjax.engine_options import EngineOptions
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.tiny_llama import GREEDY, make_engine, tiny

TEXT = "the same long beginning, "  # longer than a block of 16 tokens


def make_llm(tokenizer: Any = None, **options: Any) -> LLM:
    options = {"num_blocks": 64, "max_num_seqs": 8, **options}
    return LLM.from_params(*tiny("base"), tokenizer or ByteTokenizer(), **options)


def ids(llm: LLM, *args: Any, **kwargs: Any) -> list[list[int]]:
    outputs = llm.generate(*args, use_tqdm=False, **kwargs)
    return [each.outputs[0].token_ids for each in outputs]


def test_prompts_may_be_dicts_alone_and_in_lists() -> None:
    llm = make_llm()
    (wanted,) = ids(llm, TEXT, GREEDY)
    text, tokens = {"prompt": TEXT}, {"prompt_token_ids": list(TEXT.encode())}
    assert ids(llm, text, GREEDY) == ids(llm, tokens, GREEDY) == [wanted]
    assert ids(llm, [text, TEXT, tokens], GREEDY) == [wanted] * 3
    last = list(llm.stream(text, GREEDY))[-1]
    assert last.outputs[0].token_ids == wanted
    assert llm.beam_search(text, 2, 3)[0].prompt_token_ids == tokens["prompt_token_ids"]


def test_the_engine_accepts_dicts() -> None:
    engine = make_engine(tokenizer=ByteTokenizer())
    engine.add_request("a", {"prompt": TEXT}, GREEDY)
    assert engine.run()[0].prompt_token_ids == list(TEXT.encode())


def test_the_salt_of_a_prompt_overrides_that_of_its_params() -> None:
    llm = make_llm()

    def cached(salt: dict, params_salt: str | None) -> int:
        params = SamplingParams(max_tokens=2, cache_salt=params_salt)
        return llm.generate({"prompt": TEXT, **salt}, params, use_tqdm=False)[0].num_cached_tokens

    mine = {"cache_salt": "mine"}
    assert cached({}, None) == 0 and cached({}, None) > 0
    assert cached(mine, None) == 0 and cached(mine, "another") > 0
    assert cached({}, "another") == 0
    assert cached({"cache_salt": None}, "mine") > 0


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"prompt": "a", "multi_modal_data": {}}, "unknown key 'multi_modal_data'; supported"),
        ({"prompt": "a", 5: 6}, "unknown key 5; supported: 'prompt', 'prompt_token_ids'"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "must have one of .* has both"),
        ({"cache_salt": "a"}, "must have one of .* has neither"),
        ({}, "has neither"),
        ({"prompt": [1]}, r"prompt=\[1\] must be a string"),
        ({"prompt_token_ids": "a"}, "prompt_token_ids='a' must be a list of token ids"),
        ({"prompt_token_ids": {}}, "prompt_token_ids={} must be a list of token ids"),
        ({"prompt_token_ids": 5}, "the prompt 5 must be a string or a list of token ids"),
        ({"prompt_token_ids": []}, "empty"),
        ({"prompt": "a", "cache_salt": 5}, "cache_salt=5 must be a string or None"),
    ],
)
def test_an_invalid_dict_is_refused(prompt: Any, message: str) -> None:
    llm = make_llm()
    with pytest.raises(ValueError, match=f"prompt 0: .*{message}"):
        llm.generate(prompt, use_tqdm=False)
    with pytest.raises(ValueError, match=message):
        llm.engine.add_request("a", prompt)


@pytest.mark.parametrize("min_tokens", [0, 3])
def test_without_max_tokens_the_model_length_ends_the_output(min_tokens: int) -> None:
    llm = make_llm(max_model_len=32)
    params = SamplingParams(
        temperature=0, max_tokens=None, min_tokens=min_tokens, ignore_eos=True, n=2
    )
    outputs = llm.generate([1, 2, 3], params, use_tqdm=False)[0].outputs
    assert [len(each.token_ids) for each in outputs] == [29, 29]
    assert [each.finish_reason for each in outputs] == ["length", "length"]
    bounded = ids(llm, [1, 2, 3], SamplingParams(temperature=0, max_tokens=29, ignore_eos=True))
    assert bounded == [outputs[0].token_ids]


def test_without_max_tokens_a_stop_still_ends_the_output() -> None:
    llm = make_llm(max_model_len=32)
    (wanted,) = ids(llm, [1, 2, 3], GREEDY)
    params = SamplingParams(temperature=0, max_tokens=None, stop_token_ids=[wanted[4]])
    output = llm.generate([1, 2, 3], params, use_tqdm=False)[0].outputs[0]
    assert output.finish_reason == "stop" and len(output.token_ids) <= 5


def test_without_max_tokens_beam_search_runs_to_the_model_length() -> None:
    llm = make_llm(max_model_len=12)
    bounded, unbounded = (llm.beam_search([[1, 2, 3]], 2, count) for count in (9, None))
    assert bounded == unbounded


def test_a_small_pool_bounds_an_output_without_max_tokens() -> None:
    llm = make_llm(num_blocks=2)
    (tokens,) = ids(llm, [1, 2, 3], SamplingParams(max_tokens=None, ignore_eos=True))
    assert len(tokens) == 2 * 16 + 1 - 3


def test_the_typed_options_are_the_fields_of_the_config() -> None:
    assert get_type_hints(EngineOptions) == get_type_hints(EngineConfig)
    assert not EngineOptions.__required_keys__


@pytest.mark.parametrize("method", [LLM.__init__, LLM.from_params])
def test_constructors_have_typed_options(method: Any) -> None:
    parameter = inspect.signature(method, eval_str=True).parameters["options"]
    assert parameter.annotation == Unpack[EngineOptions]
