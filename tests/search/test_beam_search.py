"""Beam search against Hugging Face on tiny models, and the blocks that beams share."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagedjax import LLM, SamplingParams
from pagedjax.search.beam_search import Beams
from tests.support.tiny_llama import GREEDY, finished, tiny

CASES = json.loads((Path(__file__).parents[1] / "goldens" / "tiny_beam.json").read_text())["cases"]


def make_llm(variant: str, eos: int | None = None, **options: Any) -> LLM:
    config, params = tiny(variant)
    config = dataclasses.replace(config, eos_token_ids=() if eos is None else (eos,))
    return LLM.from_params(config, params, **{"num_blocks": 64, "max_num_seqs": 8, **options})


def search(llm: LLM, case: dict[str, Any]) -> tuple[list[list[int]], list[float]]:
    penalty = case["length_penalty"]
    output = llm.beam_search(case["prompt"], case["beam_width"], case["max_tokens"], penalty)[0]
    assert output.prompt_token_ids == case["prompt"]
    return [s.token_ids for s in output.sequences], [s.score for s in output.sequences]


@pytest.mark.parametrize("index", range(len(CASES)))
def test_sequences_and_scores_equal_hugging_face(index: int) -> None:
    case = CASES[index]
    llm = make_llm(case["variant"], case["eos_token_id"])
    sequences, scores = search(llm, case)
    assert sequences == case["sequences"]
    assert np.abs(np.array(scores) - case["scores"]).max() < 1e-4
    llm.engine.scheduler.check()
    assert llm.engine.stats().num_referenced_blocks == 0


@pytest.mark.parametrize(
    "options", [{"num_blocks": 12}, {"max_num_seqs": 2}, {"enable_prefix_caching": False}], ids=str
)
def test_a_small_engine_finds_the_same_sequences(options: dict[str, Any]) -> None:
    case = max(CASES, key=lambda case: case["beam_width"] * len(case["sequences"][0]))
    llm = make_llm(case["variant"], case["eos_token_id"], block_size=4, **options)
    assert search(llm, case)[0] == case["sequences"]


def test_prompts_are_searched_together_beside_other_requests() -> None:
    llm = make_llm("base")
    prompts = [[1, 2, 3], [40] * 17, [5]]
    alone = [llm.beam_search(prompt, 3, 6)[0] for prompt in prompts]
    llm.engine.add_request("other", [7, 8], GREEDY)
    assert llm.beam_search(prompts, 3, 6) == alone
    assert len(finished(llm.engine.run())["other"]) == 16


def test_beams_share_the_blocks_of_their_prefix() -> None:
    """Four beams share the 16 blocks of a 64-token prompt and add at most 3 blocks each."""
    llm = make_llm("base", block_size=4)
    most, step = 0, llm.engine.step

    def watched() -> Any:
        nonlocal most
        outputs = step()
        most = max(most, llm.engine.stats().num_referenced_blocks)
        return outputs

    llm.engine.step = watched  # type: ignore[method-assign]
    llm.beam_search([list(range(64))], 4, 6)
    assert 16 < most <= 16 + 4 * 3


def test_beam_width_one_is_greedy() -> None:
    llm = make_llm("base")
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    greedy = llm.generate([[1, 2, 3]], params, use_tqdm=False)[0].outputs[0].token_ids
    output = llm.beam_search([[1, 2, 3]], 1, 9)[0]
    assert [each.token_ids for each in output.sequences] == [greedy]
    tokens = [1, 2, 3, *greedy]
    total = llm.compute_logprobs([tokens])[0][2:].sum()
    assert abs(output.sequences[0].cumulative_logprob - total) < 1e-4


def test_ties_go_to_the_earlier_beam_and_the_lower_token() -> None:
    beams = Beams(width=2, max_tokens=3, length_penalty=1.0, end_ids=frozenset())
    first = beams.advance([[(7, -1.0), (3, -1.0), (5, -1.0), (4, -1.0)]])
    assert [choice.token for choice in first] == [3, 4]
    second = beams.advance([[(9, -1.0), (1, -2.0)], [(2, -1.0), (0, -1.0)]])
    assert [(choice.parent, choice.token) for choice in second] == [(0, 9), (1, 0)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1]], 0, 4), "beam_width=0"),
        (([[1]], 1.5, 4), "beam_width=1.5"),
        (([[1]], 65, 4), "130 tokens per step, more than the vocabulary of 128"),
        (([[1]], 2, 0), "max_tokens=0"),
        (([[1]], 2, 4, float("nan")), "length_penalty=nan"),
        (([[1]], 2, 4, "1"), "length_penalty='1' must be a number from -16 to 16"),
        (([[1]], 2, 4, 2000.0), "length_penalty=2000.0"),
        (([[1]], 2, 4, -2000), "length_penalty=-2000"),
        (([[]], 2, 4), "is empty"),
    ],
)
def test_bad_arguments_are_refused(arguments: tuple, message: str) -> None:
    llm = make_llm("base")
    with pytest.raises(ValueError, match=message):
        llm.beam_search(*arguments)
    assert not llm.engine.has_unfinished_requests()


def test_warmup_compiles_beam_search_of_the_given_widths() -> None:
    llm = make_llm("base", eos=7, max_num_seqs=4, max_num_batched_tokens=16)
    llm.engine.warmup(beam_widths=[2])
    with llm.engine.assert_no_compilation():
        llm.beam_search([[1, 2, 3], [4] * 20], beam_width=2, max_tokens=5)


@pytest.mark.parametrize("width", [0, 1.5, "2", True, 10**6])
def test_warmup_refuses_a_width_that_no_search_can_have(width: Any) -> None:
    with pytest.raises(ValueError, match="beam_width"):
        make_llm("base").engine.warmup(beam_widths=[width])
