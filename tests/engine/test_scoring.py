"""Scoring of token lists: beside running requests, refusals, and the prefix cache."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.engine_runs import PROMPT, check_all_home, greedy, solo
from tests.support.tiny_llama import GREEDY, finished, make_engine

pytestmark = pytest.mark.usefixtures("attention")


def test_scoring_beside_running_requests_loses_no_output() -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    engine.step()
    scores = engine.compute_logprobs([list(range(100)), PROMPT])
    alone = make_engine().compute_logprobs([list(range(100))])[0]
    assert np.abs(scores[0] - alone).max() < 2e-5
    outputs = engine.run()
    assert finished(outputs) == {"a": solo(PROMPT, GREEDY)}
    deltas = [token for each in outputs for token in each.outputs[0].delta_token_ids]
    assert deltas == finished(outputs)["a"][-len(deltas) :]
    check_all_home(engine)


@pytest.mark.parametrize("bad", [[], [500], [1] * 600])
def test_scoring_names_the_bad_list_before_any_work(bad: list[int]) -> None:
    engine = make_engine()
    with pytest.raises(ValueError, match="token list 1"):
        engine.compute_logprobs([[1, 2], bad])
    assert engine.stats().steps == 0
    check_all_home(engine)


def test_scoring_leaves_nothing_in_the_prefix_cache() -> None:
    """Cached keys carry no scores: later scoring cannot use them, and they evict other blocks."""
    engine = make_engine(num_blocks=20, block_size=8)
    engine.add_request("a", list(range(40)), greedy(2))
    engine.run()
    cached = engine.stats().num_cached_blocks
    for _ in range(3):
        engine.compute_logprobs([[7] * 60, [7] * 50])
    assert engine.stats().num_cached_blocks == cached > 0
    check_all_home(engine)
