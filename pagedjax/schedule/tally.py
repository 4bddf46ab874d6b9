"""Counters of an engine's work, and the statistics made from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagedjax.outputs import EngineStats
from pagedjax.schedule.scheduler import Scheduler
from pagedjax.schedule.step_time import StepTime


@dataclass
class Tally:
    """The counters behind EngineStats that the scheduler does not keep."""

    prompt_tokens: int = 0
    steps: int = 0
    computed_tokens: int = 0
    padded_tokens: int = 0
    utilization_sum: float = 0.0
    time: StepTime = field(default_factory=StepTime)

    def add_step(self, scheduler: Scheduler, computed_tokens: int, padded_tokens: int) -> None:
        """Count a dispatched step."""
        self.steps += 1
        self.computed_tokens += computed_tokens
        self.padded_tokens += padded_tokens
        self.utilization_sum += kv_utilization(scheduler)

    def stats(self, scheduler: Scheduler, num_compilations: int) -> EngineStats:
        """Return a snapshot of all counters and gauges."""
        blocks = scheduler.blocks
        return EngineStats(
            num_waiting=scheduler.num_waiting,
            num_running=len(scheduler.running),
            num_blocks=blocks.num_blocks,
            num_free_blocks=blocks.num_free,
            num_cached_blocks=blocks.num_cached,
            num_referenced_blocks=blocks.num_referenced,
            kv_utilization=kv_utilization(scheduler),
            mean_kv_utilization=self.utilization_sum / max(self.steps, 1),
            prefix_hit_tokens=scheduler.prefix_hit_tokens,
            prefix_query_tokens=scheduler.prefix_query_tokens,
            num_preemptions=scheduler.num_preemptions,
            num_compilations=num_compilations,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=scheduler.num_generated,
            steps=self.steps,
            computed_tokens=self.computed_tokens,
            padded_tokens=self.padded_tokens,
            elapsed_s=self.time.host_s + self.time.wait_s,
            host_s=self.time.host_s,
            wait_s=self.time.wait_s,
            exposed_s=self.time.exposed_s,
        )


def kv_utilization(scheduler: Scheduler) -> float:
    """Share of the referenced blocks' token slots that hold keys; 0 when no block is referenced."""
    blocks = scheduler.blocks
    slots = blocks.num_referenced * blocks.block_size
    # Only the last block of a table can be partly filled; if shared, it counts once.
    unfilled = sum(
        (len(each.block_ids) * blocks.block_size - each.num_computed)
        / blocks.num_refs(each.block_ids[-1])
        for each in scheduler.running
    )
    return 1 - unfilled / slots if slots else 0.0
