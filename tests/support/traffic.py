"""Random requests with every option, sent to an engine over many steps."""

from __future__ import annotations

import random
from typing import Any

from pagedjax import Engine, RequestOutput, SamplingParams
from tests.support.engine_runs import check_block_counts

VOCAB = 128


def random_prompt(rng: random.Random, most: int) -> list[int]:
    """A prompt of any accepted length that begins with one of three shared prefixes."""
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
    """Each option is used independently with a probability of 0.35."""
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
    """Parameters by phase: all greedy, then all random, then without edits, then any options.

    Each program of the sampler thus runs in some steps.
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
    """Sends `count` random requests to an engine over many steps, and keeps their outputs.

    `done` maps ids of requests and forks to their final outputs; `counts` counts other operations.
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
            check_block_counts(self.engine)

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
        """False if the request ended in the step in flight or has fewer tokens than were seen.

        After a rollback, the snapshot of the step in flight still contains the dropped tokens.
        """
        try:
            call(*args)
        except ValueError as error:
            assert "no live request" in str(error) or "output tokens" in str(error)
            return False
        return True
