"""Our engine under requests that arrive at given times, whether it keeps up with them or not."""

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
    """Add each request when its second has come, and step while there is work.

    The engine steps in the caller's thread, so a request that arrives during a step is added after
    it, and its time to the first token counts from its arrival.
    arrivals: seconds from now, ascending, one for each request.
    """
    # Each run has the same prompts, and must not find the keys of the run before.
    engine.reset_prefix_cache()
    seen: dict[int, list[float]] = {}  # by request: seconds at which tokens came
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
