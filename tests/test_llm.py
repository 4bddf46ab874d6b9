"""`LLM`: order of outputs, validation, `on_error`, streams, and other users of its engine."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pagedjax import LLM, RequestOutput, SamplingParams
from pagedjax.convert import convert
from pagedjax.weights import checkpoint
from tests.support.tiny_llama import GREEDY, finished, tiny
from tests.support.tiny_models import write_hf_folder

PROMPTS = [[1, 2, 3], [9] * 40, [5, 6]]


def make_llm(**options: Any) -> LLM:
    return LLM.from_params(*tiny("base"), **{"num_blocks": 64, "max_num_seqs": 8, **options})


def ids(llm: LLM, *args: Any, **kwargs: Any) -> list[list[int]]:
    outputs = llm.generate(*args, use_tqdm=False, **kwargs)
    return [each.outputs[0].token_ids for each in outputs]


def test_outputs_are_in_the_order_of_the_prompts() -> None:
    llm = make_llm()
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (9, 2, 5)]
    together = ids(llm, PROMPTS, params)
    assert [len(each) for each in together] == [9, 2, 5]
    assert together == [ids(llm, [p], q)[0] for p, q in zip(PROMPTS, params, strict=True)]


def test_one_prompt_equals_a_list_of_one() -> None:
    llm = make_llm()
    assert ids(llm, PROMPTS[0], GREEDY) == ids(llm, [PROMPTS[0]], GREEDY)
    assert llm.generate([], use_tqdm=False) == []


@pytest.mark.parametrize(
    "make",
    [
        tuple,
        np.array,
        jnp.array,
        lambda prompt: [np.int32(token) for token in prompt],
        lambda prompt: [jnp.int32(token) for token in prompt],
        lambda prompt: iter(prompt),
        lambda prompt: iter([np.array(prompt)]),
        lambda prompt: [jnp.array(prompt)],
        lambda prompt: jnp.array([prompt]),
    ],
)
def test_token_ids_in_any_form(make: Any) -> None:
    llm = make_llm()
    assert ids(llm, make(PROMPTS[0]), GREEDY) == ids(llm, [PROMPTS[0]], GREEDY)


@pytest.mark.parametrize("prompts", [None, 5, b"ab"])
def test_invalid_prompts_are_named(prompts: Any) -> None:
    llm = make_llm()
    with pytest.raises(TypeError, match="prompts=.*give a text, a list of token ids"):
        llm.generate(prompts)
    with pytest.raises(ValueError, match="prompt 1: .*must be a string or a list of token ids"):
        llm.generate([[1], prompts])
    with pytest.raises(TypeError, match="sampling_params=5"):
        llm.generate([[1]], 5)  # type: ignore[arg-type]


def test_request_ids_in_use_on_the_engine_are_avoided() -> None:
    llm = make_llm()
    llm.engine.add_request("llm-0", [1, 2], GREEDY)
    assert len(ids(llm, PROMPTS, GREEDY)) == 3
    assert finished(llm.engine.run()).keys() == {"llm-0"}


def test_every_invalid_prompt_is_named_before_the_first_step() -> None:
    llm = make_llm()
    with pytest.raises(ValueError, match=r"prompt 1: .*empty.*; prompt 3: .*500.*outside"):
        llm.generate([[1], [], [2], [500]], GREEDY, use_tqdm=False)
    assert llm.engine.stats().steps == 0
    assert not llm.engine.has_unfinished_requests()


def test_on_error_return_runs_the_valid_prompts() -> None:
    llm = make_llm()
    outputs = llm.generate([[1], [], [2]], GREEDY, use_tqdm=False, on_error="return")
    assert [each.outputs[0].finish_reason for each in outputs] == ["length", "error", "length"]
    assert "empty" in outputs[1].outputs[0].stop_reason
    assert [each.finished for each in outputs] == [True] * 3


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"on_error": "ignore"}, ValueError, "on_error='ignore'"),
        ({"sampling_params": [GREEDY]}, ValueError, "1 sampling_params for 3 prompts"),
        ({"sampling_params": [GREEDY, GREEDY, {}]}, ValueError, "prompt 2: sampling_params"),
    ],
)
def test_bad_arguments(arguments: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        make_llm().generate(PROMPTS, use_tqdm=False, **arguments)


def test_unknown_options_are_refused_before_the_model_is_read() -> None:
    with pytest.raises(TypeError, match=r"unknown option max_seqs; options: max_model_len"):
        LLM("/nowhere", max_seqs=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_model_len": 10**6}, "max_model_len=1000000 exceeds the 512 positions"),
        ({"attention": "pallas"}, "attention='pallas' needs an NVIDIA GPU"),
        ({"attention": "pallas_interpret", "block_size": 24}, "needs a block_size"),
        ({"mesh": "tp"}, "mesh='tp' must be a jax.sharding.Mesh"),
    ],
)
@pytest.mark.parametrize("kind", ["hf", "converted"])
def test_invalid_options_are_refused_before_the_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: dict, message: str
) -> None:
    write_hf_folder("base", tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "converted", progress=False)
    for reader in ("restore", "read_leaves"):
        monkeypatch.setattr(checkpoint, reader, unwanted)
    monkeypatch.setattr(jax, "device_put", unwanted)
    with pytest.raises((ValueError, TypeError), match=message):
        LLM(tmp_path / kind, **options)


def unwanted(*_: Any, **__: Any) -> None:
    pytest.fail("weights were read")


def test_a_stream_and_generate_share_the_engine() -> None:
    llm = make_llm()
    expected = ids(llm, PROMPTS, GREEDY)
    seen: list[int] = []
    for output in llm.stream(PROMPTS[0], GREEDY):
        seen += output.outputs[0].delta_token_ids
        if len(seen) in (3, 9):  # while the stream is open
            assert ids(llm, PROMPTS[1:], GREEDY) == expected[1:]
    assert seen == expected[0]


def test_a_request_added_to_the_engine_is_not_lost_to_generate() -> None:
    llm = make_llm()
    llm.engine.add_request("mine", PROMPTS[0], GREEDY)
    expected = ids(llm, PROMPTS, GREEDY)
    assert finished(llm.engine.run()) == {"mine": expected[0]}


def test_closing_a_stream_aborts_its_request() -> None:
    llm = make_llm()
    stream = llm.stream(PROMPTS[0], GREEDY)
    next(stream)
    stream.close()
    assert not llm.engine.has_unfinished_requests()
    assert llm.engine.stats().num_referenced_blocks == 0


def test_a_stream_ends_when_its_request_is_aborted() -> None:
    llm = make_llm()
    seen = []
    for output in llm.stream(PROMPTS[0], GREEDY):
        seen.append(output)
        llm.engine.abort_request(output.request_id)
    assert len(seen) == 1 and not llm.engine.has_unfinished_requests()


def test_a_step_checks_few_waiting_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = make_llm(max_num_seqs=2)
    calls: Counter[str] = Counter()

    def counted(name: str) -> Any:
        method = getattr(llm.engine, name)

        def call(*args: Any) -> Any:
            calls[name] += 1
            return method(*args)

        return call

    for name in ("step", "is_in_use"):
        monkeypatch.setattr(llm.engine, name, counted(name))
    llm.generate(PROMPTS[:2] * 20, GREEDY, use_tqdm=False)
    # One call per step, and three per prompt: for its id, its request and its end.
    assert 100 < calls["is_in_use"] <= calls["step"] + 3 * 40


def test_generate_reports_an_aborted_request(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = make_llm()
    step = llm.engine.step

    def step_and_abort() -> list[RequestOutput]:
        llm.engine.abort_request("llm-0")
        return step()

    monkeypatch.setattr(llm.engine, "step", step_and_abort)
    gone, stays = llm.generate(PROMPTS[:2], GREEDY, use_tqdm=False)
    assert (gone.finished, gone.outputs[0].finish_reason) == (True, "abort")
    assert stays.outputs[0].finish_reason == "length"


def test_stream_refuses_an_invalid_prompt_at_once() -> None:
    with pytest.raises(ValueError, match="empty"):
        make_llm().stream([], GREEDY)


def test_without_a_tokenizer_text_is_refused_and_ids_work(tmp_path: Path) -> None:
    write_hf_folder("base", tmp_path / "model")
    llm = LLM(tmp_path / "model", num_blocks=64, max_num_seqs=8)
    with pytest.raises(ValueError, match="prompt 0: .*there is no tokenizer"):
        llm.generate("text", use_tqdm=False)
    with pytest.raises(ValueError, match="prompt 0: chat needs a tokenizer"):
        llm.chat([{"role": "user", "content": "hi"}], use_tqdm=False)
    output = llm.generate([PROMPTS[0]], GREEDY, use_tqdm=False)[0].outputs[0]
    assert output.text == ""
    assert output.token_ids == ids(make_llm(), [PROMPTS[0]], GREEDY)[0]
