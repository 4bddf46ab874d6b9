"""After warm-up, random traffic compiles nothing, finishes, and returns every block."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from pagedjax import RequestOutput, SamplingParams
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.compilations import jax_compilations, programs_run
from tests.support.engine_runs import check_all_home
from tests.support.tiny_llama import make_engine
from tests.support.traffic import Traffic


def test_eager_operations_are_counted() -> None:
    """Otherwise the tests below would not notice compilations."""
    with jax_compilations() as found:
        jax.numpy.zeros((3, 7, 1, 11)).block_until_ready()
        jax.jit(lambda x: x * 3)(jax.numpy.ones(13)).block_until_ready()
    assert any("lambda" in name for name in found) and len(found) > 1
    with jax_compilations() as found:
        jax.block_until_ready(jax.device_put([np.ones(17)]))
    assert not found


def check_output(
    output: RequestOutput, prompt: list[int], params: SamplingParams, max_len: int
) -> None:
    """Check what holds for any output, whatever tokens were drawn."""
    most = min(params.max_tokens, max_len - len(prompt))
    assert output.finished and output.prompt_token_ids == prompt
    assert len(output.outputs) == params.n
    for each in output.outputs:
        ids = each.token_ids
        if each.finish_reason == "length":
            assert len(ids) == most
        else:
            assert each.finish_reason in ("stop", "abort") and len(ids) <= most
        if params.allowed_token_ids and not params.bad_words:
            assert set(ids) <= set(params.allowed_token_ids)
        if params.stop_token_ids:
            assert not set(params.stop_token_ids) & set(ids[:-1])
        if each.finish_reason == "stop":
            assert len(ids) > params.min_tokens
        if params.logprobs is None:
            assert each.logprobs is None
        else:
            assert [next(iter(found)) for found in each.logprobs] == ids
            assert all(params.logprobs <= len(x) <= params.logprobs + 1 for x in each.logprobs)
    if params.prompt_logprobs is not None and output.outputs[0].finish_reason != "abort":
        assert output.prompt_logprobs[0] is None
        assert [next(iter(found)) for found in output.prompt_logprobs[1:]] == prompt[1:]


@pytest.fixture(scope="module", params=[1, pytest.param(0, marks=pytest.mark.slow)])
def served(request: pytest.FixtureRequest) -> Any:
    """Traffic of 500 requests on a warm engine, what JAX compiled, and the programs that ran.

    The engines differ in shape: otherwise the second would reuse programs of the first that its
    own warm-up left out.
    """
    in_flight = request.param
    engine = make_engine(
        tokenizer=ByteTokenizer(), seed=5, num_blocks=24, block_size=8, max_num_seqs=5,
        max_num_batched_tokens=64, max_model_len=96 - in_flight, steps_in_flight=in_flight,
    )  # fmt: skip
    engine.warmup()
    traffic = Traffic(engine, 500, seed=in_flight)
    with jax_compilations() as compiled, programs_run(engine) as keys:
        with engine.assert_no_compilation():
            traffic.run()
    return traffic, compiled, keys


def test_every_request_of_random_traffic_finishes(served: Any) -> None:
    traffic, _, _ = served
    assert {f"r{i}" for i in range(500)} <= traffic.done.keys() == traffic.params.keys()
    assert not traffic.live
    for name, output in traffic.done.items():
        prompt, params = traffic.prompts[name], traffic.params[name]
        check_output(output, prompt, params, traffic.engine.max_model_len)
    assert any(x.outputs[0].finish_reason == "abort" for x in traffic.done.values())
    check_all_home(traffic.engine)


def test_random_traffic_covers_every_event_and_program(served: Any) -> None:
    """Preemption, prefix hits, forks, scores, and every program that warm-up compiled."""
    traffic, _, keys = served
    stats = traffic.engine.stats()
    assert stats.num_preemptions > 10 and stats.prefix_hit_tokens > 1000
    assert min(traffic.counts.values()) >= 5
    assert keys == traffic.engine._runner._programs._compiled.keys()


def test_jax_compiles_nothing_under_random_traffic(served: Any) -> None:
    """The engine's own count misses eager operations, which also compile during serving."""
    _, compiled, _ = served
    assert not compiled


def test_seeded_requests_of_random_traffic_repeat_alone(served: Any) -> None:
    """Batches, slots, chunks and preemption do not affect their tokens."""
    traffic, _, _ = served
    names = [
        name
        for name, output in traffic.done.items()
        if traffic.params[name].seed is not None
        and name not in traffic.touched
        and "abort" not in (each.finish_reason for each in output.outputs)
    ]
    assert len(names) > 150
    for name in names[::3]:
        traffic.engine.add_request("alone", traffic.prompts[name], traffic.params[name])
        (again,) = traffic.engine.run()
        wanted = [each.token_ids for each in traffic.done[name].outputs]
        assert [each.token_ids for each in again.outputs] == wanted, (name, traffic.params[name])
