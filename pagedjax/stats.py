"""Plain numbers about an engine's work."""

from __future__ import annotations

from dataclasses import dataclass

from pagedjax.scheduler import Scheduler


@dataclass(frozen=True)
class EngineStats:
    """A snapshot. Always `num_free_blocks + num_cached_blocks + num_referenced_blocks ==
    num_blocks`; cached blocks hold reusable content and are referenced by nobody.

    kv_utilization: share of the referenced blocks' token slots that hold keys, now.
    mean_kv_utilization: its mean over the steps so far. elapsed_s: seconds spent in `step`.
    """

    num_waiting: int
    num_running: int
    num_blocks: int
    num_free_blocks: int
    num_cached_blocks: int
    num_referenced_blocks: int
    kv_utilization: float
    mean_kv_utilization: float
    prefix_hit_tokens: int
    prefix_query_tokens: int
    num_preemptions: int
    num_compilations: int
    prompt_tokens: int
    generated_tokens: int
    steps: int
    elapsed_s: float


@dataclass(frozen=True)
class CompileReport:
    """What `warmup` compiled: names of programs with their shapes, and seconds of each."""

    shapes: tuple[str, ...]
    seconds: tuple[float, ...]
    total_seconds: float


@dataclass
class Tally:
    """The counters behind EngineStats, kept by the engine."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    elapsed_s: float = 0.0
    utilization_sum: float = 0.0

    def add_step(self, scheduler: Scheduler) -> None:
        """Count a dispatched step."""
        self.steps += 1
        self.utilization_sum += kv_utilization(scheduler)

    def stats(self, scheduler: Scheduler, num_compilations: int) -> EngineStats:
        """The present snapshot."""
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
            generated_tokens=self.generated_tokens,
            steps=self.steps,
            elapsed_s=self.elapsed_s,
        )


def kv_utilization(scheduler: Scheduler) -> float:
    """Share of the referenced blocks' token slots that hold keys; 0 when no block is referenced."""
    blocks = scheduler.blocks
    slots = blocks.num_referenced * blocks.block_size
    # Only the end of a table can be unfilled; a tail that several share counts once.
    unfilled = sum(
        (len(each.block_ids) * blocks.block_size - each.num_computed)
        / blocks.num_refs(each.block_ids[-1])
        for each in scheduler.running
    )
    return 1 - unfilled / slots if slots else 0.0
