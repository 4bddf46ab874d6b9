"""What `step` and `stream` return: all output so far, what is new, or one output at the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pagedjax import LLM, SamplingParams
from pagedjax.engine import Engine
from pagedjax.outputs import CompletionOutput, RequestOutput
from pagedjax.schedule.request import Candidates, Request, Status
from pagedjax.text.transcript import Transcript
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.tiny_llama import make_engine

PROMPT = [5, 6, 7, 8]


def params(kind: Any, **options: Any) -> SamplingParams:
    return SamplingParams(
        **{"temperature": 0, "max_tokens": 9, "ignore_eos": True, "output_kind": kind} | options
    )


def outputs_of(engine: Engine, params: SamplingParams) -> list[RequestOutput]:
    engine.add_request("a", PROMPT, params)
    found = []
    while engine.has_unfinished_requests():
        found += engine.step()
    return found


@pytest.mark.parametrize("options", [{}, {"logprobs": 2}, {"n": 2, "temperature": 1.0, "seed": 3}])
def test_deltas_add_up_to_the_cumulative_output(options: dict[str, Any]) -> None:
    engine = make_engine(tokenizer=ByteTokenizer())
    whole = outputs_of(engine, params("cumulative", **options))
    parts = outputs_of(engine, params("delta", **options))
    assert len(parts) == len(whole) > 5
    for index, last in enumerate(whole[-1].outputs):
        news = [each.outputs[index] for each in parts]
        assert all(each.token_ids == each.delta_token_ids for each in news)
        assert [len(each.token_ids) for each in news] == [1] * 9
        assert [token for each in news for token in each.token_ids] == last.token_ids
        assert "".join(each.text for each in news) == last.text
        if last.logprobs is not None:
            assert [one for each in news for one in each.logprobs] == last.logprobs
        assert news[-1].cumulative_logprob == last.cumulative_logprob
        assert news[-1].finish_reason == last.finish_reason == "length"


def test_final_only_is_one_output_with_everything() -> None:
    engine = make_engine(tokenizer=ByteTokenizer())
    last = outputs_of(engine, params("cumulative"))[-1].outputs[0]
    (only,) = outputs_of(engine, params("final_only"))
    assert only.finished
    all_new = replace(last, delta_token_ids=last.token_ids, delta_text=last.text)
    assert only.outputs[0] == all_new


@pytest.mark.parametrize("kind", ["cumulative", "delta", "final_only"])
def test_generate_returns_whole_outputs(kind: str) -> None:
    engine = make_engine(tokenizer=ByteTokenizer())
    llm = LLM.from_params(engine.model_config, engine.params, ByteTokenizer())
    (output,) = llm.generate([PROMPT], params(kind), use_tqdm=False)
    (wanted,) = llm.generate([PROMPT], params("cumulative"), use_tqdm=False)
    assert output.outputs == wanted.outputs and len(output.outputs[0].token_ids) == 9
    streamed = list(llm.stream(PROMPT, params(kind)))
    assert len(streamed) == (1 if kind == "final_only" else 9)


def test_an_abort_returns_all_unread_deltas() -> None:
    engine = make_engine(tokenizer=ByteTokenizer())
    engine.add_request("a", PROMPT, params("delta", logprobs=1))
    read: list[CompletionOutput] = []
    while len(read) < 3:
        read += [each.outputs[0] for each in engine.step()]
    for _ in range(3):
        engine.unread(engine.step())
    rest = engine.abort_request("a")
    assert rest is not None
    wanted = outputs_of(make_engine(tokenizer=ByteTokenizer()), params("cumulative", logprobs=1))
    count = 3 + len(rest.outputs[0].token_ids)
    assert count >= 6
    assert rest.outputs[0].token_ids == wanted[-1].outputs[0].token_ids[3:count]
    assert rest.outputs[0].logprobs == wanted[-1].outputs[0].logprobs[3:count]
    assert rest.outputs[0].finish_reason == "abort"


@pytest.mark.parametrize("what", ["fork", "rollback"])
def test_forks_and_rollbacks_of_a_request_that_returns_deltas(what: str) -> None:
    engine = make_engine(tokenizer=ByteTokenizer())
    engine.add_request("a", PROMPT, params("delta"))
    shown: dict[str, list[int]] = {"a": []}
    while len(shown["a"]) < 4:
        shown["a"] += [token for each in engine.step() for token in each.outputs[0].token_ids]
    if what == "fork":
        engine.fork("a", ["b"])  # its first output follows what the parent has then
        shown["b"] = engine._transcripts["a"].samples[0].output_ids
    else:
        engine.rollback("a", 2)
        del shown["a"][len(engine._transcripts["a"].samples[0].output_ids) :]
    while engine.has_unfinished_requests():
        for each in engine.step():
            shown[each.request_id] += each.outputs[0].token_ids
    wanted = outputs_of(engine, params("cumulative"))[-1].outputs[0].token_ids
    assert all(ids == wanted for ids in shown.values())


@pytest.mark.parametrize("kind", ["Delta", None, 0])
def test_an_unknown_kind_is_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match="output_kind=.*supported: 'cumulative', 'delta', 'final"):
        SamplingParams(output_kind=kind)


class CountingList(list):
    """A list that counts the elements it hands out in slices."""

    num_read = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        if isinstance(index, slice):
            self.num_read += len(found)
        return found


@pytest.mark.parametrize("kind", ["delta", "final_only"])
@pytest.mark.parametrize("logprobs", [None, 0])
def test_a_step_costs_the_same_however_long_the_output_is(kind: str, logprobs: int | None) -> None:
    request = Request(
        "a", CountingList(PROMPT), len(PROMPT), params(kind, logprobs=logprobs), 10_000,
        frozenset(), frozenset(), status=Status.RUNNING,
    )  # fmt: skip
    transcript = Transcript([request], ByteTokenizer())
    read_per_step = []
    for token in range(600):
        request.tokens.append(token % 100)
        if logprobs is not None:
            request.token_logprobs.append(Candidates(token % 100, -1.0, 1, ()))
        before = request.tokens.num_read
        transcript.advance(lambda *_: None)
        read_per_step.append(request.tokens.num_read - before)
    assert max(read_per_step) <= len(PROMPT) + 10
    assert read_per_step[100] == read_per_step[500]
