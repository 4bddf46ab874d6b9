"""Callers of an engine: threads, JAX settings, traces, forked processes, pickle."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pagedjax import LLM, SamplingParams
from pagedjax.checks.turns import Turns
from tests.support.tiny_llama import GREEDY, finished, make_engine, tiny

SHARES_PROGRAMS = False  # a program must be traced under the JAX setting of its test

PROMPTS = [[1, 2, 3], [9] * 40, [5, 6], [7, 8, 9, 10], list(range(1, 20)), [3]]


def make_llm(**options: Any) -> LLM:
    return LLM.from_params(*tiny("base"), **{"num_blocks": 64, "max_num_seqs": 8, **options})


def ids(outputs: Any) -> list[list[int]]:
    return [each.outputs[0].token_ids for each in outputs]


def run_threads(*functions: Callable[[], None]) -> None:
    """Run the functions in threads at once; re-raise the first error of any of them."""
    errors: list[BaseException] = []

    def guarded(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(each,), daemon=True) for each in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive(), "a call never returned"
    if errors:
        raise errors[0]


def test_threads_that_generate_at_once_get_their_own_outputs() -> None:
    llm = make_llm()
    wanted = [ids(llm.generate([p], GREEDY, use_tqdm=False))[0] for p in PROMPTS]
    found: dict[int, Any] = {}

    def generate(index: int) -> None:
        found[index] = ids(llm.generate(PROMPTS, GREEDY, use_tqdm=False))

    run_threads(*[lambda i=index: generate(i) for index in range(4)])  # type: ignore[misc]
    assert found == dict.fromkeys(range(4), wanted)
    assert llm.engine.stats().num_referenced_blocks == 0


def test_threads_may_mix_all_calls() -> None:
    llm = make_llm()
    engine, params = llm.engine, llm.engine.params
    wanted = ids(llm.generate(PROMPTS, GREEDY, use_tqdm=False))
    scores = llm.compute_logprobs(PROMPTS)
    beams = llm.beam_search(PROMPTS[0], 2, 4)[0].sequences

    def generate() -> None:
        assert ids(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == wanted

    def stream() -> None:
        for prompt, tokens in zip(PROMPTS, wanted, strict=True):
            *_, last = llm.stream(prompt, GREEDY)
            assert last.outputs[0].token_ids == tokens

    def score() -> None:
        for one, other in zip(llm.compute_logprobs(PROMPTS), scores, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)

    def update() -> None:
        for index in range(4):
            engine.update_params(params)
            engine.add_request(f"gone-{index}", [4] * 30, GREEDY)
            assert engine.abort_request(f"gone-{index}") is not None

    def search() -> None:
        assert llm.beam_search(PROMPTS[0], 2, 4)[0].sequences == beams

    run_threads(generate, stream, score, update, search)
    assert engine.stats().num_referenced_blocks == 0
    engine.scheduler.check()


def test_turns_are_granted_in_order_of_arrival() -> None:
    turns, order, waiting = Turns(), [], threading.Semaphore(0)

    def take(name: int) -> None:
        waiting.release()
        with turns:
            order.append(name)

    with turns, turns:  # reentrant
        threads = []
        for name in range(3):
            threads.append(threading.Thread(target=take, args=(name,)))
            threads[-1].start()
            waiting.acquire()
            while len(turns._waiting) <= name:
                pass
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2]


SAMPLED = [
    SamplingParams(temperature=0, max_tokens=5, ignore_eos=True),
    SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=3, max_tokens=5, ignore_eos=True),
    SamplingParams(temperature=0.7, seed=5, logprobs=2, prompt_logprobs=1, max_tokens=5),
    SamplingParams(
        temperature=0.7, seed=5, repetition_penalty=1.3, logit_bias={3: 1.0}, min_p=0.05
    ),
]


def everything(**options: Any) -> list[Any]:
    """Token ids and log probabilities from every way to use an engine."""
    llm = make_llm(**options)
    outputs = llm.generate(PROMPTS[:4], SAMPLED, use_tqdm=False)
    streamed = [each.outputs[0].delta_token_ids for each in llm.stream(PROMPTS[0], SAMPLED[1])]
    scores = llm.compute_logprobs(PROMPTS)
    arrays: Any = llm.compute_logprobs(PROMPTS, return_arrays=True)
    assert {str(each.dtype) for each in scores} | {str(arrays.logprobs.dtype)} == {"float32"}
    beams = [each.token_ids for each in llm.beam_search(PROMPTS[0], 2, 4)[0].sequences]
    engine = llm.engine
    engine.add_request("parent", PROMPTS[1], SAMPLED[1])
    engine.step(), engine.step()
    engine.fork("parent", ["child"], [9])
    engine.update_params(engine.params)
    forked = finished(engine.run())
    return [outputs, streamed, [each.tolist() for each in scores], beams, forked]


@contextmanager
def configured(name: str, value: Any) -> Iterator[None]:
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jax_enable_x64", True),
        ("jax_transfer_guard", "disallow"),
        ("jax_disable_jit", True),
    ],
)
def test_jax_settings_change_no_result(name: str, value: Any, kv_cache_dtype: str) -> None:
    wanted = everything(kv_cache_dtype=kv_cache_dtype)
    with configured(name, value):
        assert everything(kv_cache_dtype=kv_cache_dtype) == wanted


def test_x64_switched_on_later_and_warmup() -> None:
    llm = make_llm(max_num_seqs=2, max_num_batched_tokens=16)
    wanted = ids(llm.generate(PROMPTS[:4], SAMPLED, use_tqdm=False))
    with configured("jax_enable_x64", True):
        llm.engine.warmup()
        with llm.engine.assert_no_compilation():
            again = llm.generate(PROMPTS[:4], SAMPLED, use_tqdm=False)
    assert [len(each) for each in ids(again)] == [len(each) for each in wanted]
    assert ids(again)[:2] == wanted[:2]


@pytest.mark.parametrize("how", ["jit", "grad", "vmap", "scan"])
def test_a_call_inside_a_trace_raises_with_a_remedy(how: str) -> None:
    llm = make_llm()

    def call(x: jax.Array) -> jax.Array:
        llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)
        return x

    run: dict[str, Callable[[], Any]] = {
        "jit": lambda: jax.jit(call)(1.0),
        "grad": lambda: jax.grad(call)(1.0),
        "vmap": lambda: jax.vmap(call)(jnp.ones(2)),
        "scan": lambda: jax.lax.scan(lambda c, x: (call(c), x), 0.0, jnp.ones(2)),
    }
    with pytest.raises(RuntimeError, match="runs on the host and cannot be called inside jit"):
        run[how]()
    assert len(llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)) == 1


def test_a_forked_process_must_make_its_own_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, parent = make_engine(), os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with pytest.raises(RuntimeError, match=f"process {parent}.* make the engine in the child"):
        engine.add_request("a", PROMPTS[0], GREEDY)


@pytest.mark.parametrize("take", [pickle.dumps, copy.deepcopy])
def test_an_engine_is_not_pickled(take: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="cannot be pickled or copied; make one in each process"):
        take(make_llm())


def test_a_request_preempted_between_two_steps_keeps_its_token_in_flight() -> None:
    wanted = make_engine()
    wanted.add_request("a", PROMPTS[0], GREEDY)
    engine = make_engine()
    engine.add_request("a", PROMPTS[0], GREEDY)
    for _ in range(4):
        engine.step()
    (request,) = engine.scheduler.running
    assert request.num_pending == 1
    engine.scheduler._queues.preempt(request)
    assert finished(engine.run()) == finished(wanted.run())
    engine.scheduler.check()


def test_representations_are_one_short_line() -> None:
    llm = make_llm()
    shown = repr(llm)
    assert shown == (
        "LLM(Engine(llama, float32 on cpu:0, 64 blocks of 16 float32, attention 'xla', "
        "0 running, 0 waiting))"
    )
    (output,) = llm.generate([[5] * 30], GREEDY, use_tqdm=False)
    assert repr(output) == (
        "RequestOutput('llm-0', prompt of 30 tokens, [CompletionOutput(0, 16 tokens, '', "
        "'length')], finished=True)"
    )
