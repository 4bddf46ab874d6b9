"""The engine: params, device state and scheduler, advanced one step at a time.

Any thread may call it; calls from several threads take turns between steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from pagedjax.architecture.model_config import ModelConfig
from pagedjax.config import EngineConfig
from pagedjax.devices.host_call import Caller, InProcess, host_call
from pagedjax.intake.branches import check_fork, check_rollback, children
from pagedjax.intake.intake import Intake, Prompt
from pagedjax.intake.scoring import Scoring
from pagedjax.outputs import CompileReport, EngineStats, RequestOutput
from pagedjax.sampling_params import SamplingParams
from pagedjax.schedule.blocks import BlockPool
from pagedjax.schedule.request import Request
from pagedjax.schedule.scheduler import Scheduler
from pagedjax.step.loop import StepLoop
from pagedjax.step.runner import Runner
from pagedjax.step.scores import ScoredArrays, score_arrays
from pagedjax.text.transcripts import Transcripts
from pagedjax.weights.leaves import check_replacement
from pagedjax.weights.params import Params


class Engine(InProcess):
    """Continuous batching over a paged KV pool, on params that the caller keeps.

    params: the tree described in `models`, on the device; held by reference, never copied.
    tokenizer: for text prompts and output texts; it has Hugging Face's `encode` and `decode`.
    Raises ValueError if params or an option do not fit the model, MemoryError if no pool fits.
    """

    def __init__(
        self,
        model_config: ModelConfig,
        params: Params,
        engine_config: EngineConfig | None = None,
        tokenizer: Any = None,
    ) -> None:
        self.caller = Caller()
        config = engine_config or EngineConfig()
        self.config, self.model_config, self.tokenizer = config, model_config, tokenizer
        self._runner = Runner(model_config, params, config)
        self.scheduler = Scheduler(
            BlockPool(self._runner.num_blocks, config.block_size), config.max_num_seqs,
            self._runner.token_budget, config.enable_prefix_caching is not False,
        )  # fmt: skip
        self.intake = Intake(
            model_config, self.max_model_len, self.scheduler.blocks, config.seed, tokenizer,
            config.max_logprobs, config.extra or {},
        )  # fmt: skip
        self._transcripts = Transcripts(tokenizer)
        self._loop = StepLoop(
            self._runner, self.scheduler, self._transcripts, config.steps_in_flight
        )

    def __repr__(self) -> str:
        running, waiting = len(self.scheduler.running), self.scheduler.num_waiting
        return (
            f"Engine({self.model_config.model_type}, {self._runner.description}, "
            f"{running} running, {waiting} waiting)"
        )

    @property
    def params(self) -> Params:
        """The tree the caller gave, by reference."""
        return self._runner.given_params

    @property
    def max_model_len(self) -> int:
        """Largest number of tokens of prompt and output together."""
        return self._runner.max_model_len

    @host_call
    def make_request(
        self, request_id: str, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Request:
        """Check a prompt and its params without queueing; raises the errors of `add_request`."""
        if self.is_in_use(request_id):
            raise ValueError(f"request id {request_id!r} is in use; abort it or read its output")
        return self.intake.request(request_id, prompt, sampling_params)

    @host_call
    def is_in_use(self, request_id: str) -> bool:
        """Whether a request of that id is unfinished, or an output of it unread."""
        return self._transcripts.is_in_use(request_id)

    @host_call
    def queue_request(self, request: Request, every_step: bool = True) -> None:
        """Queue what `make_request` returned; `every_step`: see `Transcript`."""
        self.intake.admit(request)
        self._transcripts.open(request, every_step)
        self._loop.tally.prompt_tokens += request.num_prompt
        self.scheduler.add(request)

    def add_request(
        self, request_id: str, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> None:
        """Queue a prompt: a text, token ids, or one of vLLM's prompt dicts.

        Raises ValueError for an id in use, an empty prompt, ids outside the vocabulary, and a
        prompt that can never fit the model's length or the pool.
        """
        with self.caller.turn():  # so that no other thread takes the id in between
            self.queue_request(self.make_request(request_id, prompt, sampling_params))

    @host_call
    def abort_request(self, request_id: str) -> RequestOutput | None:
        """End a request now and return its final output; None for an unknown id.

        Its blocks and its id are free at once, and `step` never reports it. If it had already
        ended and that output is unread, this call returns that output.
        """
        return self._transcripts.abort(request_id, self.scheduler.abort)

    @host_call
    def has_unfinished_requests(self) -> bool:
        """True while a request waits or runs, or an output waits to be read."""
        return self.scheduler.has_unfinished() or bool(self._transcripts.unread)

    @host_call
    def step(self) -> list[RequestOutput]:
        """Advance by one step and return the outputs that are ready.

        With a step in flight these are the outputs of the previous step, or none. If a step fails,
        its error is raised and every running request is queued again, to be recomputed.
        """
        self._loop.step()
        return self._transcripts.unread.take()

    @host_call
    def step_for(self, request_ids: Collection[str]) -> list[RequestOutput]:
        """Return unread outputs of these requests, or if there are none, those of one more step.

        Outputs of other requests stay unread, for other callers that step this engine.
        """
        mine = self._transcripts.unread.take_of(request_ids)
        if not mine:
            outputs = self.step()
            mine = [each for each in outputs if each.request_id in request_ids]
            self.unread([each for each in outputs if each.request_id not in request_ids])
        return mine

    def run(self, max_steps: int | None = None) -> list[RequestOutput]:
        """Step until no request is left, or `max_steps` times; return the finished outputs."""
        finished, self._transcripts.only_ends = [], True  # nobody reads outputs before the last
        try:
            while self.has_unfinished_requests() and max_steps != 0:
                finished += [each for each in self.step() if each.finished]
                max_steps = None if max_steps is None else max_steps - 1
        finally:
            self._transcripts.only_ends = False
        return finished

    @host_call
    def unread(self, outputs: Sequence[RequestOutput]) -> None:
        """Return outputs that belong to another caller; the next `step` returns them first."""
        self._transcripts.unread.put_back(outputs)

    def compute_logprobs(
        self, token_lists: Sequence[Sequence[int]], *, return_arrays: bool = False
    ) -> list[np.ndarray] | ScoredArrays:
        """Log probabilities of given tokens under the model, without generating.

        Returns one float32 array per list, of length len - 1: log p(token[i+1] | tokens[:i+1]); or
        with `return_arrays` padded device arrays, see `ScoredArrays`. A common prefix of several
        lists is computed once. Running requests continue; the next `step` returns their outputs.
        Raises ValueError with the index of a list that is empty, too long, or has unknown ids.
        """
        scoring = Scoring(self.caller, self.intake, self._loop.scores, self.scheduler)
        requests, arrays = scoring.run(token_lists, lambda: self.step_for(()))
        with self.caller.turn():
            return score_arrays(requests, arrays, self._runner.device) if return_arrays else arrays

    @host_call
    def update_params(self, params: Params, keep_prefix_cache: bool = False) -> None:
        """Use other weights of the same structure, shapes and dtypes; nothing is recompiled.

        Steps in flight are finished first. A running request keeps the keys that the old weights
        computed, and enters no more blocks into the prefix cache, which is emptied.
        `keep_prefix_cache=True` keeps it, and so hits on keys of the old weights. Raises
        ValueError naming every leaf that does not fit; the old params then stay.
        """
        check_replacement(self.params, params)
        self._loop.drain()
        self._runner.replace_params(params)
        if not keep_prefix_cache:
            self.reset_prefix_cache()

    @host_call
    def warmup(self, beam_widths: Sequence[int] = ()) -> CompileReport:
        """Compile every shape that serving can need, without running one.

        beam_widths: widths of beam searches to compile for as well.
        """
        return self._runner.warmup([self.intake.num_candidates(each) for each in beam_widths])

    @contextmanager
    def assert_no_compilation(self) -> Iterator[None]:
        """Raise AssertionError if this engine compiles anything within the block."""
        with self._runner.assert_no_compilation():
            yield

    @host_call
    def stats(self) -> EngineStats:
        """Counters and gauges, as plain numbers."""
        return self._loop.tally.stats(self.scheduler, self._runner.num_compilations)

    @host_call
    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes. Running requests keep their blocks and enter no more."""
        self.scheduler.blocks.clear()

    @host_call
    def fork(
        self, request_id: str, new_request_ids: Sequence[str], seeds: Sequence[int] | None = None
    ) -> None:
        """Start copies of a request at its present token.

        They share its blocks copy-on-write. Child j draws with seeds[j], or with a fresh seed.
        Steps in flight are finished first. Raises ValueError for an unknown or finished request,
        one with n > 1, ids in use, and seeds that do not match.
        """
        parent = self._loop.drained_sample(request_id, "fork")
        seeds = check_fork(new_request_ids, seeds, self.is_in_use)
        for child in children(self.intake, parent, new_request_ids, seeds):
            self._transcripts.fork(request_id, child)
            self.scheduler.fork(parent, child)

    @host_call
    def rollback(self, request_id: str, num_tokens: int) -> None:
        """Drop the last `num_tokens` output tokens of a request, and their keys.

        Steps in flight are finished first. The next tokens are drawn with the same random numbers
        as those dropped. Raises ValueError for an unknown or finished request, one with n > 1,
        and more tokens than there are.
        """
        request = self._loop.drained_sample(request_id, "rollback")
        num_tokens = check_rollback(num_tokens, request.num_output)
        if num_tokens:
            self.scheduler.rollback(request, num_tokens)
            self._transcripts.rewind(request_id)
