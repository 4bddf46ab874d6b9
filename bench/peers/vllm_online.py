"""vLLM's CPU build under requests that arrive over time, as a peer of `bench.latency`.

    PEER/bin/python bench/peers/vllm_online.py --gguf FILE --dtype bfloat16 --rows 64

PEER is an environment with vllm, torch, transformers and gguf; nothing of pagedjax is imported. A
task is {"prompts": [[id, ...], ...], "output_lens": [n, ...], "arrivals": [seconds, ...]}; see
`exchange`. The result's `times` has for each request the seconds at which tokens came, on the clock
of the arrivals, and their number, as seen by a caller of vLLM's asynchronous engine, on which its
server is built.
"""

import asyncio
import time
from typing import Any

from exchange import answer_tasks, check_workload
from vllm_engine import WARM_PROMPTS, WARM_TOKENS, EngineFolder, environment, greedy


def main() -> None:
    """Create the engine and answer tasks."""
    folder = EngineFolder(__doc__)
    # One event loop for all tasks, because the engine's connections belong to it.
    loop = asyncio.new_event_loop()
    engines: list[Any] = []

    def begin() -> tuple:
        engine = loop.run_until_complete(make_engine(folder.options()))
        engines.append(engine)

        def run(task: dict) -> dict:
            return loop.run_until_complete(answer(engine, **task))

        warm = len(WARM_PROMPTS)
        run(
            {"prompts": WARM_PROMPTS, "output_lens": [WARM_TOKENS] * warm, "arrivals": [0.0] * warm}
        )
        # Otherwise vLLM's worker would busy-wait while our engine is timed.
        return lambda task: folder.settled(run(task)), environment()

    try:
        answer_tasks(begin)
    finally:
        for engine in engines:
            engine.shutdown()
        folder.remove()


async def make_engine(options: dict) -> Any:
    """Return vLLM's asynchronous engine."""
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(AsyncEngineArgs(**options, disable_log_stats=True))


async def answer(
    engine: Any, prompts: list[list[int]], output_lens: list[int], arrivals: list[float]
) -> dict:
    """Run the requests; return when the tokens of each came, and the ids."""
    check_workload(prompts, output_lens)
    if len(arrivals) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts, but {len(arrivals)} arrivals.")
    start = time.perf_counter()
    rows = await asyncio.gather(
        *(
            request(engine, str(index), start, *each)
            for index, each in enumerate(zip(prompts, output_lens, arrivals, strict=True))
        )
    )
    times = [[seconds, len(ids)] for seconds, ids in rows]
    return {"times": times, "outputs": [ids for _, ids in rows]}


async def request(
    engine: Any, name: str, start: float, prompt: list[int], output_len: int, arrival: float
) -> tuple[list[float], list[int]]:
    """Wait for the arrival, run the request; return the seconds of its tokens, and the ids."""
    await asyncio.sleep(max(0.0, start + arrival - time.perf_counter()))
    seconds, ids = [], []
    stream = engine.generate({"prompt_token_ids": prompt}, greedy(output_len, delta=True), name)
    async for output in stream:
        if new := output.outputs[0].token_ids:
            seconds.append(time.perf_counter() - start)
            ids += new
    return seconds, ids


# The engine's worker process imports this file again.
if __name__ == "__main__":
    main()
