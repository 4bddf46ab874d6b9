"""Runs of requests on tiny engines, and checks of their outputs and of the state they leave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pagedjax import CompletionOutput, Engine, RequestOutput, SamplingParams
from tests.support.tiny_llama import make_engine

PROMPT = [8, 17, 55, 3, 52]  # the first tokens of its greedy output are all different


def prompt_of(length: int, start: int = 0) -> list[int]:
    """A prompt of `length` token ids; another `start` gives other ids."""
    return [(start + 7 * i + i * i) % 120 for i in range(length)]


def greedy(max_tokens: int = 16, **options: Any) -> SamplingParams:
    """Greedy sampling that ignores EOS, unless `options` say otherwise."""
    return SamplingParams(temperature=0, max_tokens=max_tokens, **{"ignore_eos": True, **options})


def run_one(engine: Engine, prompt: list[int], params: SamplingParams) -> RequestOutput:
    """Run one request on an idle engine; its final output."""
    engine.add_request("one", prompt, params)
    return engine.run()[-1]


def solo(prompt: list[int], params: SamplingParams, **options: Any) -> list[int]:
    """Token ids of a request that runs alone on a new engine without a prefix cache."""
    engine = make_engine(enable_prefix_caching=False, **options)
    return run_one(engine, prompt, params).outputs[0].token_ids


def steps(engine: Engine) -> Iterator[RequestOutput]:
    """All outputs of an engine, step by step, until no request is left."""
    while engine.has_unfinished_requests():
        yield from engine.step()


def collected(outputs: Iterable[RequestOutput]) -> dict[str, list[CompletionOutput]]:
    """Final samples of each request, after checking that their deltas add up."""
    seen: dict[str, list[RequestOutput]] = {}
    for output in outputs:
        seen.setdefault(output.request_id, []).append(output)
    for each in seen.values():
        assert each[-1].finished
        for index in range(len(each[0].outputs)):
            check_cumulative([output.outputs[index] for output in each])
    return {name: each[-1].outputs for name, each in seen.items()}


def check_cumulative(outputs: Sequence[CompletionOutput]) -> None:
    """The deltas up to each snapshot add up to its text and its token ids."""
    text, ids = "", []
    for output in outputs:
        text, ids = text + output.delta_text, ids + output.delta_token_ids
        assert (output.text, output.token_ids) == (text, ids)


def check_block_counts(engine: Engine) -> None:
    """Free, cached and referenced blocks add up to the size of the pool."""
    stats = engine.stats()
    blocks = stats.num_free_blocks + stats.num_cached_blocks + stats.num_referenced_blocks
    assert blocks == stats.num_blocks


def check_all_home(engine: Engine) -> None:
    """No request is left, and no block is referenced."""
    stats = engine.stats()
    engine.scheduler.check()
    check_block_counts(engine)
    assert stats.num_running == stats.num_waiting == stats.num_referenced_blocks == 0
