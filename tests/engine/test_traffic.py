"""B62: after a warm-up, traffic over every option compiles nothing, ends, and gives all back."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import jax
import numpy as np
import pytest

from pagedjax import Engine, EngineConfig, RequestOutput, SamplingParams
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.tiny_llama import make_engine, tiny

COMPILED = "/jax/core/compile/backend_compile_duration"
VOCAB = 128


@contextmanager
def jax_compilations() -> Iterator[list[str]]:
    """Names of what JAX compiles within the block, whoever asked for it: eager operations too."""
    found: list[str] = []

    def listen(event: str, _: float, **details: Any) -> None:
        if event == COMPILED:
            found.append(str(details.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_eager_operations_are_counted() -> None:
    """Else the tests below would pass whatever was compiled."""
    with jax_compilations() as found:
        jax.numpy.zeros((3, 7, 1, 11)).block_until_ready()
        jax.jit(lambda x: x * 3)(jax.numpy.ones(13)).block_until_ready()
    assert any("lambda" in name for name in found) and len(found) > 1
    with jax_compilations() as found:
        jax.block_until_ready(jax.device_put([np.ones(17)]))
    assert not found


# -- random requests -----------------------------------------------------------------------------


def random_prompt(rng: random.Random, most: int) -> list[int]:
    """Any length that is accepted; the beginning is one of three."""
    length = rng.choice([rng.randint(1, most), rng.randint(1, 12), most])
    start, shared = rng.randrange(3), rng.randint(0, length)
    begin = [(11 * start + 7 * i + i * i) % 120 for i in range(shared)]
    return begin + [rng.randrange(VOCAB) for _ in range(length - shared)]


def random_filters(rng: random.Random) -> dict[str, Any]:
    return {
        "temperature": rng.choice([0.0, 0.3, 1.0, 2.5]),
        "top_k": rng.choice([-1, 0, 1, 5, 200]),
        "top_p": rng.choice([1.0, 0.9, 0.3]),
        "min_p": rng.choice([0.0, 0.05, 1.0]),
    }


def random_edits(rng: random.Random) -> dict[str, Any]:
    """Each is wanted by a third of the requests that come here, independently."""
    edits = {
        "repetition_penalty": rng.choice([0.8, 1.3]),
        "presence_penalty": rng.choice([-0.5, 1.0]),
        "frequency_penalty": rng.choice([-0.2, 0.7]),
        "logit_bias": {rng.randrange(VOCAB): rng.uniform(-5, 5) for _ in range(3)},
        "allowed_token_ids": rng.sample(range(VOCAB), 20),
        "bad_words": [chr(rng.randint(65, 122)) * rng.randint(1, 2)],
        "min_tokens": rng.randint(1, 3),
    }
    return {name: value for name, value in edits.items() if rng.random() < 0.35}


def random_ends(rng: random.Random) -> dict[str, Any]:
    return {
        "max_tokens": rng.choice([3, 4, 9, 40]),
        "stop_token_ids": rng.choice([None, rng.sample(range(VOCAB), 6)]),
        "stop": rng.choice([None, None, chr(rng.randint(65, 122))]),
        "ignore_eos": rng.random() < 0.5,
    }


def random_params(rng: random.Random, index: int) -> SamplingParams:
    """For a while all are greedy, then all are random, then without edits, then anything goes.

    So that every program of the sampler has steps of its own.
    """
    kind = ("greedy", "random", "logprobs", "any", "any", "any")[index // 20 % 6]
    chosen = {
        **random_ends(rng),
        "seed": rng.choice([None, rng.randrange(2**32)]),
        "n": rng.choice([1, 1, 1, 2, 3]),
        "prompt_logprobs": rng.choice([None, None, None, rng.randint(0, 20)]),
        "priority": rng.choice([0, 0, 0, 1, -1]),
        "cache_salt": rng.choice([None, None, "a", "b"]),
    }
    if kind == "greedy":
        return SamplingParams(temperature=0.0, **chosen)
    if kind == "random":
        return SamplingParams(**chosen, **random_filters(rng))
    logprobs = rng.choice([None, 0, rng.randint(1, 20)])
    edits = random_edits(rng) if kind == "any" else {}
    return SamplingParams(**chosen, **random_filters(rng), **edits, logprobs=logprobs)


class Traffic:
    """Sends `count` random requests to an engine over many steps, and keeps what comes back.

    `done` are the final outputs by id, of requests and of forks; `counts` says what else happened.
    """

    def __init__(self, engine: Engine, count: int, seed: int) -> None:
        self.engine, self._rng = engine, random.Random(seed)
        rng = self._rng
        self._todo = [
            (f"r{i}", random_prompt(rng, engine.max_model_len - 1), random_params(rng, i))
            for i in range(count)
        ][::-1]
        self.params: dict[str, SamplingParams] = {}
        self.prompts: dict[str, list[int]] = {}
        self.live: dict[str, RequestOutput | None] = {}
        self.done: dict[str, RequestOutput] = {}
        self.touched: set[str] = set()  # by a fork or a rollback
        self.counts = dict.fromkeys(("abort", "fork", "rollback", "score"), 0)

    def run(self) -> None:
        steps, limit = 0, 100 * len(self._todo)
        chances = {self._abort: 0.02, self._fork: 0.04, self._rollback: 0.08, self._score: 0.01}
        while self._todo or self.engine.has_unfinished_requests():
            assert steps < limit, "the traffic makes no progress"
            steps += 1
            self._arrive()
            for act, chance in chances.items():
                if self._rng.random() < chance:
                    act()
            for output in self.engine.step():
                self._take(output)
            check_identity(self.engine)

    def _arrive(self) -> None:
        while self._todo and self._rng.random() < 0.4:
            name, prompt, params = self._todo.pop()
            self.engine.add_request(name, prompt, params)
            self.live[name], self.params[name], self.prompts[name] = None, params, prompt

    def _take(self, output: RequestOutput) -> None:
        name = output.request_id
        assert name in self.live, f"{name} is reported after its end"
        self.live[name] = output
        if output.finished:
            self._end(name, output)

    def _end(self, name: str, output: RequestOutput) -> None:
        del self.live[name]
        assert name not in self.done
        self.done[name] = output

    def _any_live(self, single: bool = True) -> str | None:
        names = [name for name in self.live if not single or self.params[name].n == 1]
        return self._rng.choice(names) if names else None

    def _abort(self) -> None:
        name = self._any_live(single=False)
        final = name and self.engine.abort_request(name)
        if name and final:
            self.counts["abort"] += 1
            self._end(name, final)

    def _fork(self) -> None:
        parent = self._any_live()
        children = [f"{parent}/{len(self.params)}.{i}" for i in range(self._rng.randint(1, 2))]
        seeds = self._rng.choice([None, list(range(len(children)))])
        if parent and self._try(self.engine.fork, parent, children, seeds):
            self.counts["fork"] += 1
            self.touched |= {parent, *children}
            for child in children:
                self.live[child], self.params[child] = None, self.params[parent]
                self.prompts[child] = self.prompts[parent]

    def _rollback(self) -> None:
        name = self._any_live()
        output = self.live[name] if name else None
        if name and output:
            most = len(output.outputs[0].token_ids)
            if self._try(self.engine.rollback, name, self._rng.randint(0, most)):
                self.counts["rollback"] += 1
                self.touched.add(name)

    def _score(self) -> None:
        self.counts["score"] += 1
        lists = [self._scored() for _ in range(self._rng.randint(1, 4))]
        if self._rng.random() < 0.5:
            scores = self.engine.compute_logprobs(lists)
            assert [len(each) for each in scores] == [len(each) - 1 for each in lists]
            assert all((each <= 0).all() for each in scores)
        else:
            mask = self.engine.compute_logprobs(lists, return_arrays=True)[2]
            assert mask.shape == (len(lists), max(map(len, lists)) - 1)

    def _scored(self) -> list[int]:
        return random_prompt(self._rng, self.engine.max_model_len)

    @staticmethod
    def _try(call: Any, *args: Any) -> bool:
        """False if the request ended with the step in flight, or has fewer tokens than were seen.

        After a rollback that step's snapshot still comes, with the tokens that were dropped.
        """
        try:
            call(*args)
        except ValueError as error:
            assert "no live request" in str(error) or "output tokens" in str(error)
            return False
        return True


def check_identity(engine: Engine) -> None:
    stats = engine.stats()
    blocks = stats.num_free_blocks + stats.num_cached_blocks + stats.num_referenced_blocks
    assert blocks == stats.num_blocks


def check_home(engine: Engine) -> None:
    stats = engine.stats()
    engine.scheduler.check()
    check_identity(engine)
    assert stats.num_running == stats.num_waiting == stats.num_referenced_blocks == 0


def check_output(
    output: RequestOutput, prompt: list[int], params: SamplingParams, max_len: int
) -> None:
    """What any output must be, whatever was drawn."""
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


@contextmanager
def programs_run(engine: Engine) -> Iterator[set[tuple]]:
    """The keys of all programs that are run within the block."""
    programs, keys = engine._runner._programs, set()
    lookup = programs._compile

    def recorded(key: tuple, *args: Any) -> Any:
        keys.add(key)
        return lookup(key, *args)

    programs._compile = recorded
    yield keys
    del programs._compile


@pytest.fixture(scope="module", params=[1, pytest.param(0, marks=pytest.mark.slow)])
def served(request: pytest.FixtureRequest) -> Any:
    """Traffic of 500 requests over a warm engine; what JAX compiled; which programs ran.

    No two engines have one shape: the second would find compiled what its warm-up left out.
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
    check_home(traffic.engine)


def test_random_traffic_reaches_what_it_is_meant_to_reach(served: Any) -> None:
    """Preemption, prefix hits, copies, scores; and every program that warm-up compiled."""
    traffic, _, keys = served
    stats = traffic.engine.stats()
    assert stats.num_preemptions > 10 and stats.prefix_hit_tokens > 1000
    assert min(traffic.counts.values()) >= 5
    assert keys == traffic.engine._runner._programs._compiled.keys()


def test_jax_compiles_nothing_under_random_traffic(served: Any) -> None:
    """Beyond the engine's own count: an eager operation would compile on a live request, too."""
    _, compiled, _ = served
    assert not compiled


def test_seeded_requests_of_random_traffic_repeat_alone(served: Any) -> None:
    """B49: neither neighbours, slots, chunks nor preemption had a part in their tokens."""
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


# -- every length --------------------------------------------------------------------------------

BUDGET = 317
SAMPLERS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0}, {"seed": 7}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1},
    {"repetition_penalty": 1.2}, {"presence_penalty": 0.4}, {"frequency_penalty": -0.3},
    {"logit_bias": {3: 2.0}}, {"allowed_token_ids": [4, 5, 6]}, {"bad_words": ["ab"]},
    {"min_tokens": 2, "stop_token_ids": [5]}, {"n": 2, "stop": "x"}, {"ignore_eos": True},
)  # fmt: skip


@pytest.fixture(scope="module")
def one_layer() -> Engine:
    """Warm, with a token budget that is no bucket of its own accord."""
    config, params = tiny("base")
    engine = Engine(
        dataclasses.replace(config, num_layers=1),
        {**params, "layers": params["layers"][:1]},
        EngineConfig(
            num_blocks=120, max_num_seqs=5, max_num_batched_tokens=BUDGET, max_model_len=BUDGET + 3,
            enable_prefix_caching=False,
        ),
        ByteTokenizer(),
    )  # fmt: skip
    engine.warmup()
    return engine


def serve(engine: Engine, length: int, count: int, logprobs: int | None) -> None:
    """`count` prompts of one length at a time; the samplers take turns."""
    for index in range(count):
        sampler = SAMPLERS[(length * 5 + count + index) % len(SAMPLERS)]
        prompt = [(length + index + 7 * i) % VOCAB for i in range(length)]
        params = SamplingParams(**{"max_tokens": 2, **sampler}, logprobs=logprobs)
        engine.add_request(str(index), prompt, params)
    outputs = engine.run()
    assert len(outputs) == count
    for output in outputs:
        for each in output.outputs:
            assert 1 <= len(each.token_ids) <= 2
            assert (each.logprobs is None) == (logprobs is None)


def check_lengths(engine: Engine, cases: list[tuple[int, int, int | None]]) -> None:
    with jax_compilations() as compiled, engine.assert_no_compilation():
        for length, count, logprobs in cases:
            serve(engine, length, count, logprobs)
    assert not compiled
    check_home(engine)


@pytest.mark.slow
def test_no_length_up_to_an_odd_budget_compiles_anything(one_layer: Engine) -> None:
    """Every length once, with 1 to 5 sequences in turn, and logprobs half the time."""
    lengths = range(1, BUDGET + 1)
    cases = [(n, 1 + n % 5, (None, 0, None, 20)[n // 5 % 4]) for n in lengths]
    assert len({(count, logprobs) for _, count, logprobs in cases}) == 15
    check_lengths(one_layer, cases)


@pytest.mark.slow
def test_no_length_by_any_number_of_sequences_compiles_anything(one_layer: Engine) -> None:
    """B62 in full."""
    check_lengths(one_layer, list(product(range(1, BUDGET + 1), range(1, 6), (None, 3))))
