"""Transcripts of a request that ends at a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pagedjax import CompletionOutput, SamplingParams
from pagedjax.outputs import FinishReason
from pagedjax.schedule.request import Request, Status
from pagedjax.text.transcript import Transcript
from tests.support.byte_tokenizer import PieceTokenizer
from tests.support.engine_runs import check_cumulative

FOX = ["The quick br", "own", " fox", " j", b"\xf0\x9f\x8c", "<eos>"]


def told(
    ids: Sequence[int], finish_reason: str | None = None, **options: Any
) -> list[CompletionOutput]:
    """Snapshots of a request that receives pieces of FOX one by one until it finishes."""
    request = Request(
        id="a", arrival=0, tokens=[0], num_prompt=1, params=SamplingParams(**options), seed=0,
        max_len=99, stop_ids=frozenset(), eos_ids=frozenset(),
    )  # fmt: skip
    transcript = Transcript([request], PieceTokenizer(FOX, special=5))

    def on_stop(stopped: Request, reason: FinishReason, why: str) -> None:
        stopped.status = Status.FINISHED
        stopped.finish_reason, stopped.stop_reason = reason, why

    outputs = []
    for number, token in enumerate(ids, 1):
        request.tokens.append(token)
        if number == len(ids) and finish_reason is not None:
            request.status, request.finish_reason = Status.FINISHED, finish_reason
        output = transcript.advance(on_stop)
        assert output is not None
        outputs.append(output.outputs[0])
        if request.is_finished:
            break
    check_cumulative(outputs)
    return outputs


def test_a_stop_string_across_tokens() -> None:
    outputs = told([0, 1, 2, 3], "length", stop="own fox")
    assert [each.delta_text for each in outputs] == ["The quick br", "", ""]
    last = outputs[-1]
    assert (last.text, last.finish_reason, last.stop_reason) == ("The quick br", "stop", "own fox")
    assert last.token_ids == [0, 1, 2]


def test_a_stop_string_across_tokens_that_is_included() -> None:
    last = told([0, 1, 2, 3], "length", stop="own fox", include_stop_str_in_output=True)[-1]
    assert (last.text, last.stop_reason) == ("The quick brown fox", "own fox")


@pytest.mark.parametrize("reason", ["length", "stop", "abort"])
def test_held_text_is_released_at_the_end(reason: str) -> None:
    outputs = told([0, 1], reason, stop=["own fox"])
    assert [each.delta_text for each in outputs] == ["The quick br", "own"]
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == (reason, None)


def test_the_earliest_of_two_stop_strings() -> None:
    last = told([0, 1, 2, 3], stop=["fox", "row"])[-1]
    assert (last.text, last.stop_reason) == ("The quick b", "row")


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_a_stop_string_outranks_the_end_that_comes_with_it(reason: str) -> None:
    last = told([0, 1], reason, stop=["brown"])[-1]
    assert (last.text, last.finish_reason, last.stop_reason) == ("The quick ", "stop", "brown")


@pytest.mark.parametrize(
    ("min_tokens", "text", "stop_reason"),
    [(0, "The ", "quick"), (1, "The quick br", "own"), (2, "The quick brown ", "fox"),
     (3, "The quick brown fox j", None)],
)  # fmt: skip
def test_the_token_after_min_tokens_is_the_first_to_stop(
    min_tokens: int, text: str, stop_reason: str | None
) -> None:
    """Like EOS, which is allowed from token min_tokens + 1 on."""
    last = told(range(4), "length", stop=["quick", "own", "fox"], min_tokens=min_tokens)[-1]
    assert (last.text, last.stop_reason) == (text, stop_reason)


def test_a_character_cut_by_the_end_is_one_replacement() -> None:
    assert told([1, 4], "length", stop="xyz")[-1].text == "own\ufffd"


def test_a_character_cut_by_the_end_may_complete_a_stop_string() -> None:
    assert told([1, 4], "length", stop="n\ufffd")[-1].text == "ow"


@pytest.mark.parametrize(("skip", "text"), [(True, "own"), (False, "ow")])
def test_a_special_token_is_matched_where_the_user_sees_it(skip: bool, text: str) -> None:
    assert told([1, 5], "stop", stop="n<eos", skip_special_tokens=skip)[-1].text == text
