"""Serve requests at given arrival times, whether the engine keeps up or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from bench.serving.own_engine import greedy
from bench.serving.served import Served
from bench.serving.workload import Workload
from pagedjax import Engine


def serve(
    engine: Engine,
    workload: Workload,
    arrivals: Sequence[float],
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Served]:
    """Add each request at its arrival time, and step while there are requests.

    The engine steps in the caller's thread, so a request that arrives during a step is added after
    it; its time to first token counts from its arrival.
    arrivals: seconds from now, ascending, one for each request.
    """
    # Runs have the same prompts, and must not hit the prefix cache of the previous run.
    engine.reset_prefix_cache()
    seen: dict[int, list[float]] = {}  # by request: seconds of its tokens
    counts: dict[int, int] = {}
    added, start = 0, clock()
    while added < len(arrivals) or engine.has_unfinished_requests():
        now = clock() - start
        while added < len(arrivals) and arrivals[added] <= now:
            params = greedy(workload.output_lens[added])
            engine.add_request(str(added), workload.prompts[added], params)
            added += 1
        if not engine.has_unfinished_requests():
            sleep(arrivals[added] - now)
            continue
        outputs = engine.step()
        now = clock() - start
        for output in outputs:
            index = int(output.request_id)
            seen.setdefault(index, []).append(now)
            counts[index] = len(output.outputs[0].token_ids)
    return [
        Served(arrival, tuple(seen[index]), counts[index]) for index, arrival in enumerate(arrivals)
    ]
