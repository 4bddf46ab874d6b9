"""Scores of prefix blocks that are shared by the texts of one call."""

import numpy as np

from pagedjax.sampling_params import SamplingParams
from pagedjax.schedule.request import Request
from pagedjax.step.scores import Scores


def request(tokens: list[int]) -> Request:
    return Request(
        "r", tokens, len(tokens), SamplingParams(), len(tokens), frozenset(), frozenset()
    )


def test_cached_blocks_are_filled_at_any_place_and_from_any_text() -> None:
    """The blocks may be in the middle, and from a later text, as after a preemption."""
    first, second = request(list(range(14))), request([*range(13), 50])
    scores = Scores()
    scores.open([first, second])
    whole = np.arange(13, dtype=np.float32)
    scores._arrays[first][:] = np.where(np.isin(np.arange(13), range(3, 8)), np.nan, whole)
    scores._arrays[second][4:] = whole[4:] + 100
    scores._arrays[second][:4] = whole[:4] + 100
    scores._arrays[second][8:12] = np.nan
    ours, theirs = scores.close([first, second], block_size=4)
    wanted = whole.copy()
    wanted[3:8] += 100
    np.testing.assert_array_equal(ours, wanted)
    np.testing.assert_array_equal(theirs, [*(whole[:8] + 100), *whole[8:12], 112])


def test_unknown_scores_stay_nan_after_an_error() -> None:
    """After an error, `close` returns the arrays as they are and does not raise another error."""
    only = request(list(range(10)))
    scores = Scores()
    scores.open([only])
    (found,) = scores.close([only], block_size=4)
    assert np.isnan(found).all()
