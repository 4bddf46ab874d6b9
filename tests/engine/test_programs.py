"""Compiled programs of an engine: warm-up compiles them all, and none copies the pool."""

from __future__ import annotations

import numpy as np
import pytest

from pagedjax import SamplingParams
from pagedjax.weights.params import flatten_tree
from tests.support.engine_runs import PROMPT, greedy
from tests.support.tiny_llama import make_engine

pytestmark = pytest.mark.usefixtures("attention")


def test_warmup_compiles_everything_that_serving_needs() -> None:
    engine = make_engine(max_num_seqs=3, max_num_batched_tokens=40)
    with pytest.raises(AssertionError, match="compiled: .*forward 3 40 3.*call warmup"):
        with engine.assert_no_compilation():
            report = engine.warmup()
    assert len(report.shapes) == len(report.seconds) == engine.stats().num_compilations
    random = np.random.RandomState(0)
    for index in range(40):
        params = SamplingParams(
            temperature=float(index % 3), top_k=int(random.randint(0, 9)), max_tokens=5,
            top_p=float(random.uniform(0.1, 1)), min_p=float(random.uniform(0, 0.2)),
            logprobs=None if index % 4 else 2, prompt_logprobs=None if index % 5 else 1,
            repetition_penalty=1.0 if index % 6 else 1.3, min_tokens=int(index % 7 == 0),
        )  # fmt: skip
        engine.add_request(str(index), [1] * random.randint(1, 200), params)
        if index % 7 == 0:
            engine.step()
    with engine.assert_no_compilation():
        engine.compute_logprobs([[1] * 90, [2] * 3])
        engine.run()
    assert engine.stats().num_compilations == len(report.shapes)


def test_no_program_copies_the_pool_or_a_weight() -> None:
    """The pool is updated in place: outputs alias inputs, and temporaries are much smaller."""
    engine = make_engine(num_blocks=4096, max_num_seqs=2, max_num_batched_tokens=16)
    engine.warmup()
    cache = engine._runner._state.cache
    pool_bytes = cache.k.nbytes + cache.v.nbytes
    weight = max(leaf.nbytes for leaf in flatten_tree(engine.params).values())
    for key, compiled in engine._runner._programs._compiled.items():
        memory = compiled.memory_analysis()
        if key[0] == "forward":
            assert memory.alias_size_in_bytes >= pool_bytes, key
            assert memory.temp_size_in_bytes < pool_bytes / 4, key
        assert f"copy(f32[{','.join(map(str, cache.k.shape))}]" not in compiled.as_text()
    assert weight < pool_bytes


def test_sines_and_cosines_are_taken_once_and_not_in_every_layer() -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, greedy(3))
    engine.run()
    forwards = {
        key: compiled.as_text()
        for key, compiled in engine._runner._programs._compiled.items()
        if key[0] == "forward"
    }
    assert len(engine.params["layers"]) > 1
    assert len(forwards) >= 2
    for key, text in forwards.items():
        assert (text.count(" sine("), text.count(" cosine(")) == (1, 1), key
