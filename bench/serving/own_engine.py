"""pagedjax as a contender: an engine that is sized for a workload, and its statistics."""

from __future__ import annotations

import cProfile
import io
import pstats
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.serving import trial
from bench.serving.trial import Trial
from bench.serving.workload import BLOCK_SIZE, END_ID, MAX_MODEL_LEN, Workload, make_workload
from pagedjax import LLM, Engine, EngineStats, SamplingParams, load_checkpoint
from pagedjax.schedule.blocks import with_watermark

WARM_REQUESTS, WARM_TOKENS = 16, 4
PROFILE_LINES = 25
# Counters of an engine's statistics, and their names in a result.
COUNTED = {
    "steps": "steps",
    "num_preemptions": "preemptions",
    "num_compilations": "compilations",
    "generated_tokens": "generated_tokens",
    "prefix_hit_tokens": "prefix_hit_tokens",
    "computed_tokens": "computed_tokens",
    "padded_tokens": "padded_tokens",
    "elapsed_s": "engine_seconds",
    "host_s": "host_seconds",
    "exposed_s": "exposed_seconds",
    "device_s": "device_seconds",
    "wait_s": "wait_seconds",
}


@dataclass(frozen=True)
class Options:
    """Engine options. num_blocks: None for a pool in which the workload causes no preemption."""

    dtype: str
    max_num_seqs: int
    max_num_batched_tokens: int | None = None
    num_blocks: int | None = None
    max_model_len: int = MAX_MODEL_LEN
    block_size: int = BLOCK_SIZE


class OwnEngine:
    """One LLM and the workload that its pool is sized for.

    num_requests: number of requests of the workload, whose ids are in the model's vocabulary.
    """

    def __init__(self, model: Path, options: Options, num_requests: int) -> None:
        config, params, tokenizer = load_checkpoint(model, options.dtype)
        self.end_id = min(END_ID, config.vocab_size)
        self.workload = make_workload(num_requests, end_id=self.end_id)
        self.num_blocks = options.num_blocks or blocks_without_preemption(
            self.workload, options.max_num_seqs, options.block_size
        )
        self._llm = LLM.from_params(
            config, params, tokenizer, max_model_len=options.max_model_len,
            block_size=options.block_size, num_blocks=self.num_blocks,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
        )  # fmt: skip

    def warm_up(self) -> dict[str, Any]:
        """Compile every program and generate a few tokens; return compile time and programs."""
        report = self._llm.engine.warmup()
        longest = self.engine.max_model_len - WARM_TOKENS
        prompts = [prompt[:longest] for prompt in self.workload.prompts[:WARM_REQUESTS]]
        self._generate(prompts, [WARM_TOKENS] * len(prompts))
        return {"seconds": round(report.total_seconds, 2), "programs": len(report.shapes)}

    @property
    def engine(self) -> Engine:
        """The engine itself."""
        return self._llm.engine

    def continuous(self, workload: Workload) -> Trial:
        """Run a workload by continuous batching."""
        return self._with_stats(lambda: trial.continuous(workload, self._generate))

    def static(self, batch: int, workload: Workload) -> Trial:
        """Run a workload in static batches of at most `batch` requests."""
        return self._with_stats(lambda: trial.static(workload, batch, self._generate))

    def profile(self) -> str:
        """Profile the host in one more run by continuous batching, which is not measured."""
        profiler = cProfile.Profile()
        profiler.runcall(self.continuous, self.workload)
        text = io.StringIO()
        pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(PROFILE_LINES)
        return text.getvalue()

    def _generate(
        self, prompts: Sequence[list[int]], output_lens: Sequence[int]
    ) -> list[list[int]]:
        params = [greedy(length) for length in output_lens]
        outputs = self._llm.generate(list(prompts), params, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs]

    def _with_stats(self, run: Callable[[], Trial]) -> Trial:
        # Runs have the same prompts, and must not hit the prefix cache of the previous run.
        self.engine.reset_prefix_cache()
        before = self.engine.stats()
        done = run()
        return replace(done, details=stats_between(before, self.engine.stats()))


def greedy(tokens: int) -> SamplingParams:
    """Return greedy parameters for exactly `tokens` output tokens."""
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)


def blocks_without_preemption(
    workload: Workload, max_num_seqs: int, block_size: int = BLOCK_SIZE
) -> int:
    """Return the blocks that the longest requests need together, each with the longest output.

    With static batching every request of a batch runs as long as the longest. The result includes
    the watermark that the scheduler keeps free when it admits a request.
    """
    longest = max(workload.output_lens)
    needs = sorted(-(-(len(each) + longest) // block_size) for each in workload.prompts)
    return with_watermark(sum(needs[-max_num_seqs:]))


def stats_between(before: EngineStats, after: EngineStats) -> dict[str, Any]:
    """Return the differences of two snapshots.

    mean_kv_utilization: over the steps in between. padding_waste: the share of padding among the
    tokens that the device processed, if any.
    """
    one, other = before.as_dict(), after.as_dict()
    found: dict[str, Any] = {
        COUNTED[name]: round(other[name] - one[name], 4) for name in other if name in COUNTED
    }
    used = other["mean_kv_utilization"] * other["steps"] - one["mean_kv_utilization"] * one["steps"]
    found["mean_kv_utilization"] = round(used / max(found["steps"], 1), 4)
    if found.get("padded_tokens"):
        found["padding_waste"] = round(1 - found["computed_tokens"] / found["padded_tokens"], 4)
    return found
