"""Greedy tokens in batches of several sizes, compared with Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import pytest

from pagedjax import Engine, EngineConfig
from tests.support.engine_runs import greedy
from tests.support.tiny_llama import finished, tiny

GOLDEN = json.loads((Path(__file__).parents[1] / "goldens" / "tiny_greedy.json").read_text())[
    "base"
]
CLOSE = 0.05  # bfloat16 moves these logits by a few hundredths


@cache
def parity_engine(dtype: str) -> Engine:
    config, params = tiny("base")
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    options = EngineConfig(num_blocks=64, max_num_seqs=8, enable_prefix_caching=False)
    return Engine(config, params, options)


def in_batch(engine: Engine, batch: int) -> Iterator[tuple[dict[str, Any], list[int]]]:
    """Each golden request and its token ids, at every position of a batch of `batch` requests."""
    for first in range(len(GOLDEN)):
        group = [GOLDEN[(first + index) % len(GOLDEN)] for index in range(batch)]
        for index, golden in enumerate(group):
            engine.add_request(str(index), golden["prompt"], greedy(len(golden["output"])))
        outputs = finished(engine.run())
        yield from ((golden, outputs[str(index)]) for index, golden in enumerate(group))


@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_greedy_ids_in_float32_do_not_depend_on_the_batch(batch: int) -> None:
    """The ids are exactly those of Hugging Face."""
    for golden, ids in in_batch(parity_engine("float32"), batch):
        assert ids == golden["output"]


@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_greedy_ids_in_bfloat16_differ_only_where_two_tokens_are_close(batch: int) -> None:
    """At the first id that differs, float32's two best logits differ by less than CLOSE."""
    for golden, ids in in_batch(parity_engine("bfloat16"), batch):
        pairs = zip(ids, golden["output"], golden["top2_gap"], strict=True)
        gap = next((gap for ours, theirs, gap in pairs if ours != theirs), 0)
        assert gap < CLOSE
