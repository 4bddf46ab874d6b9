"""Plain numbers about an engine's work."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from pagedjax.scheduler import Scheduler
from pagedjax.step_time import StepTime


@dataclass(frozen=True)
class EngineStats:
    """A snapshot. Always `num_free_blocks + num_cached_blocks + num_referenced_blocks ==
    num_blocks`; cached blocks hold reusable content and are referenced by nobody.

    kv_utilization: share of the referenced blocks' token slots that hold keys, now.
    mean_kv_utilization: its mean over the steps so far.
    computed_tokens: tokens that steps were asked to compute; padded_tokens: what they computed,
    padding included. elapsed_s: seconds spent in `step`: wait_s of them waiting for the device,
    host_s working. exposed_s: the part of host_s that the device may have spent idle, since no
    step was in flight, or the one in flight had ended before the next was dispatched.
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
    computed_tokens: int
    padded_tokens: int
    elapsed_s: float
    host_s: float
    wait_s: float
    exposed_s: float

    def as_dict(self) -> dict[str, int | float]:
        """All of it by name, with what follows from the counters."""
        derived = ("device_s", "overlap", "padding_waste")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}

    @property
    def device_s(self) -> float:
        """Seconds of `step` in which the device had work, at least."""
        return self.elapsed_s - self.exposed_s

    @property
    def overlap(self) -> float:
        """Share of the host's work that was hidden behind the device's; 0 before any."""
        return 1 - self.exposed_s / self.host_s if self.host_s else 0.0

    @property
    def padding_waste(self) -> float:
        """Share of the computed tokens that was padding; 0 before any."""
        return 1 - self.computed_tokens / self.padded_tokens if self.padded_tokens else 0.0


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
    # Only the end of a table can be unfilled; a tail that several share counts once.
    unfilled = sum(
        (len(each.block_ids) * blocks.block_size - each.num_computed)
        / blocks.num_refs(each.block_ids[-1])
        for each in scheduler.running
    )
    return 1 - unfilled / slots if slots else 0.0
