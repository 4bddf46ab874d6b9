"""Snapshots of a request: their deltas, their cost, and tokenizers that fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pagedjax import LLM, SamplingParams
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.tiny_llama import make_engine, tiny


class Brittle(ByteTokenizer):
    """A tokenizer that raises when it decodes `poison`."""

    def __init__(self, poison: int) -> None:
        super().__init__()
        self.poison = poison

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        if self.poison in ids:
            raise RuntimeError("no such token")
        return super().decode(ids, skip_special_tokens)


def greedy(**options: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 6, "ignore_eos": True} | options)


@pytest.mark.parametrize("options", [{}, {"stop": "never"}, {"logprobs": 1}, {"n": 2}])
@pytest.mark.parametrize("only_ends", [False, True])
@pytest.mark.parametrize("place", ["prompt", "output"])
def test_a_tokenizer_that_fails_ends_its_request_alone(
    options: dict[str, Any], only_ends: bool, place: str
) -> None:
    plain = make_engine(tokenizer=ByteTokenizer())
    prompts = {"bad": [77, 5], "good": [9] * 20, "too": [3, 1]}

    def outputs(engine: Any) -> dict[str, Any]:
        for name, prompt in prompts.items():
            engine.add_request(name, prompt, greedy(**options))
        found = []
        while engine.has_unfinished_requests():
            found += engine.run(max_steps=1) if only_ends else engine.step()
        return {each.request_id: each for each in found if each.finished}

    expected = outputs(plain)
    assert len(expected) == 3
    others = {
        token for name in ("good", "too") for each in expected[name].outputs
        for token in [*prompts[name], *each.token_ids]
    }  # fmt: skip
    drawn = set(expected["bad"].outputs[0].token_ids) - others
    engine = make_engine(tokenizer=Brittle(77 if place == "prompt" else drawn.pop()))
    found = outputs(engine)
    for sample in found["bad"].outputs:
        assert sample.finish_reason == "error"
        assert sample.stop_reason == "the tokenizer: RuntimeError: no such token"
    for name in ("good", "too"):
        assert [(each.token_ids, each.text) for each in found[name].outputs] == [
            (each.token_ids, each.text) for each in expected[name].outputs
        ]
        if only_ends:
            assert found[name].outputs[0].delta_token_ids == found[name].outputs[0].token_ids
    assert engine.stats().num_referenced_blocks == 0
    engine.add_request("bad", [5], greedy())  # its id is free again


def test_a_tokenizer_that_fails_on_an_alternative() -> None:
    """The text and all numbers are reported; only the texts of log probabilities are lost."""
    params = greedy(max_tokens=6, logprobs=3, prompt_logprobs=2)
    plain = make_engine(tokenizer=ByteTokenizer())
    plain.add_request("a", [5, 6, 7], params)
    expected = plain.run()[0].outputs[0]
    assert expected.logprobs is not None
    others = {token for dicts in expected.logprobs for token in dicts} - set(expected.token_ids)
    engine = make_engine(tokenizer=Brittle(others.pop()))
    engine.add_request("a", [5, 6, 7], params)
    shown: list[int] = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            shown += output.outputs[0].delta_token_ids
            last = output.outputs[0]
    assert last.finish_reason == "error" and last.logprobs is not None
    assert shown == last.token_ids == expected.token_ids[: len(shown)]
    assert last.cumulative_logprob == pytest.approx(
        sum(dicts[i].logprob for dicts, i in zip(last.logprobs, last.token_ids, strict=True))
    )


def test_abort_rollback_and_fork_survive_a_tokenizer_that_fails() -> None:
    """Abort, rollback and fork; a fork that fails does not fail its parent."""
    tokenizer = Brittle(-1)
    engine = make_engine(tokenizer=tokenizer)
    for name in ("aborted", "rolled"):
        engine.add_request(name, [5, 6, 7], greedy(max_tokens=12))
    engine.add_request("parent", [9] * 20, greedy(max_tokens=12, logprobs=1))
    while len(engine._transcripts["parent"].samples[0].output_ids) < 3:
        engine.step()
    tokenizer.poison = 6  # a token of the first two prompts
    aborted = engine.abort_request("aborted")
    assert aborted is not None and aborted.outputs[0].finish_reason == "abort"
    engine.rollback("rolled", 1)
    engine.fork("parent", ["child"])
    child = engine._transcripts["child"]._outputs[0]
    child._tokenizer, child._text = Brittle(9), None  # its prompt contains 9
    last = {each.request_id: each.outputs[0] for each in engine.run()}
    assert {name: each.finish_reason for name, each in last.items()} == {
        "rolled": "error", "child": "error", "parent": "length"
    }  # fmt: skip
    assert last["parent"].logprobs is not None
    assert all(each.decoded_token for dicts in last["parent"].logprobs for each in dicts.values())


def test_deltas_contain_all_text_that_was_not_reported() -> None:
    """Also if stop strings make the engine decode text before it is shown."""
    llm = LLM.from_params(*tiny("base"), ByteTokenizer(), num_blocks=32)
    for stop in (None, "never"):
        (output,) = llm.generate([5, 6, 7], greedy(max_tokens=9, stop=stop), use_tqdm=False)
        (sample,) = output.outputs
        assert (sample.delta_token_ids, sample.delta_text) == (sample.token_ids, sample.text)
        assert len(sample.token_ids) == 9


def test_work_per_token_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dict of each token's log probabilities is built once for all snapshots."""
    from pagedjax.text.logprob_texts import LogprobTexts

    made = []
    own = LogprobTexts.append
    monkeypatch.setattr(
        LogprobTexts,
        "append",
        lambda self, each, **final: made.append(each) or own(self, each, **final),
    )
    engine = make_engine(tokenizer=ByteTokenizer())
    engine.add_request("a", [5, 6, 7, 8], greedy(max_tokens=20, logprobs=2, prompt_logprobs=1))
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert len(outputs) == 20 and len(made) == 20 + 3
    assert engine.tokenizer.num_decoded < 10 * 20  # texts and log probabilities, with contexts
    for count, output in enumerate(outputs, 1):
        (sample,) = output.outputs
        assert sample.logprobs is not None and output.prompt_logprobs is not None
        chosen = [dicts[i] for dicts, i in zip(sample.logprobs, sample.token_ids, strict=True)]
        assert len(chosen) == count
        assert sample.cumulative_logprob == pytest.approx(sum(each.logprob for each in chosen))
        assert [each is None for each in output.prompt_logprobs] == [True, False, False, False]


def test_a_rollback_forgets_the_log_probabilities_of_what_it_drops() -> None:
    engine = make_engine(tokenizer=ByteTokenizer())
    engine.add_request("a", [5, 6, 7], greedy(max_tokens=12, logprobs=2))
    snapshots = []
    while len(snapshots) < 6:
        snapshots += engine.step()
    engine.rollback("a", 3)
    engine.fork("a", ["b"])
    last = {each.request_id: each.outputs[0] for each in engine.run() if each.finished}
    plain = make_engine(tokenizer=ByteTokenizer())
    plain.add_request("a", [5, 6, 7], greedy(max_tokens=12, logprobs=2))
    expected = plain.run()[0].outputs[0]
    for sample in last.values():
        assert (sample.token_ids, sample.text) == (expected.token_ids, expected.text)
        assert sample.logprobs is not None and len(sample.logprobs) == 12
        assert sample.cumulative_logprob == pytest.approx(expected.cumulative_logprob, abs=1e-4)
