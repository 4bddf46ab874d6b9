"""pagedjax as a contender: built for a workload, warmed up, and run with its statistics."""

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
# What counts up over an engine's life, where its statistics have it, and the name in a result.
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
    """How the engine is made. num_blocks: None for a pool in which nothing of the benchmark's
    workload is preempted.
    """

    dtype: str
    max_num_seqs: int
    max_num_batched_tokens: int | None = None
    num_blocks: int | None = None
    max_model_len: int = MAX_MODEL_LEN
    block_size: int = BLOCK_SIZE


class OwnEngine:
    """One LLM and the workload that its pool was sized for.

    num_requests: of the workload, whose ids are drawn from the model's vocabulary.
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
        """Compile every program, then run a few tokens, so that nothing is done a first time
        while the clock runs. Returns what compiling took.
        """
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
        """A workload by continuous batching."""
        return self._with_stats(lambda: trial.continuous(workload, self._generate))

    def static(self, batch: int, workload: Workload) -> Trial:
        """A workload in static batches of at most `batch` requests."""
        return self._with_stats(lambda: trial.static(workload, batch, self._generate))

    def profile(self) -> str:
        """Where the host's time goes in one more, uncounted run by continuous batching."""
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
        # Each run has the same prompts, and must not find the keys of the run before.
        self.engine.reset_prefix_cache()
        before = self.engine.stats()
        done = run()
        return replace(done, details=stats_between(before, self.engine.stats()))


def greedy(tokens: int) -> SamplingParams:
    """What a request that is to be given so many tokens asks for."""
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)


def blocks_without_preemption(
    workload: Workload, max_num_seqs: int, block_size: int = BLOCK_SIZE
) -> int:
    """Blocks for the longest requests that can run together, each with the longest output.

    Static batching gives every request of a batch the length of the longest. A little more is
    added for the blocks that the scheduler keeps free when it admits a request.
    """
    longest = max(workload.output_lens)
    needs = sorted(-(-(len(each) + longest) // block_size) for each in workload.prompts)
    return with_watermark(sum(needs[-max_num_seqs:]))


def stats_between(before: EngineStats, after: EngineStats) -> dict[str, Any]:
    """What happened between two snapshots.

    mean_kv_utilization: that of the steps between. padding_waste: the share of the tokens that
    were computed which are padding, if any were.
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
