"""The engine: params, device state and scheduler, advanced one step at a time.

A step is scheduled on the host, dispatched to the device, and committed when its tokens arrive.
With one step in flight, step n+1 is dispatched before the tokens of step n are read.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from pagedjax.blocks import BlockPool
from pagedjax.config import EngineConfig, ModelConfig
from pagedjax.intake import Intake, Prompt
from pagedjax.params import Params, check_alive, check_replacement
from pagedjax.request import Request, RequestOutput, SamplingParams
from pagedjax.runner import InFlight, Runner
from pagedjax.scheduler import Plan, Scheduler
from pagedjax.stats import CompileReport, EngineStats, Tally
from pagedjax.text import Detokenizer
from pagedjax.transcript import Transcript


class Engine:
    """Continuous batching over a paged KV pool, on params that stay the caller's own.

    params: the tree described in `models`, on the device; held by reference, never copied.
    tokenizer: needed for string prompts and for `text`; any object with the `encode` and `decode`
        of a Hugging Face tokenizer.
    Raises ValueError when params do not fit the model config or an option does not fit the model,
    and MemoryError when no pool fits.
    """

    def __init__(
        self,
        model_config: ModelConfig,
        params: Params,
        engine_config: EngineConfig | None = None,
        tokenizer: Any = None,
    ) -> None:
        config = engine_config or EngineConfig()
        self.config, self.model_config, self.tokenizer = config, model_config, tokenizer
        self._runner = Runner(model_config, params, config)
        blocks = BlockPool(self._runner.num_blocks, config.block_size)
        budget = self._runner.buckets.max_num_batched_tokens
        self._scheduler = Scheduler(blocks, config.max_num_seqs, budget)
        self._intake = Intake(model_config, self.max_model_len, blocks, config.seed, tokenizer)
        self._in_flight: deque[InFlight] = deque()
        self._transcripts: dict[str, Transcript] = {}
        self._scores: dict[Request, np.ndarray] = {}
        self._unread: list[RequestOutput] = []
        self._num_arrivals = 0
        self._tally = Tally()

    @property
    def params(self) -> Params:
        """The tree given, by reference."""
        return self._runner.params

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and output together."""
        return self._runner.max_model_len

    # -- requests ------------------------------------------------------------------------------

    def make_request(
        self, request_id: str, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Request:
        """Check a prompt and its params without queueing them; raises what `add_request` does."""
        if request_id in self._transcripts:
            raise ValueError(f"request id {request_id!r} is in use; finish or abort it first")
        params = SamplingParams() if sampling_params is None else sampling_params
        self._num_arrivals += 1
        return self._intake.request(request_id, prompt, params, self._num_arrivals - 1)

    def queue_request(self, request: Request) -> None:
        """Queue what `make_request` returned."""
        detokenizer = None
        if self.tokenizer is not None and request.params.detokenize:
            detokenizer = Detokenizer(
                self.tokenizer, request.tokens, request.params.skip_special_tokens
            )
        self._transcripts[request.id] = Transcript(request, detokenizer)
        self._tally.prompt_tokens += request.num_prompt
        self._scheduler.add(request)

    def add_request(
        self, request_id: str, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> None:
        """Queue a prompt (text or token ids).

        Raises ValueError for an id that is in use, an empty prompt, ids outside the vocabulary,
        and a prompt that can never fit the model's length or the pool.
        """
        self.queue_request(self.make_request(request_id, prompt, sampling_params))

    def abort_request(self, request_id: str) -> RequestOutput | None:
        """End a request now and return its final output; None for an unknown id.

        Its blocks are free at once. `step` never reports an aborted request.
        """
        transcript = self._transcripts.pop(request_id, None)
        if transcript is None:
            return None
        self._unread = [each for each in self._unread if each.request_id != request_id]
        self._scheduler.abort(transcript.request)
        return transcript.snapshot()

    def has_unfinished_requests(self) -> bool:
        """True while a request waits or runs, or an output waits to be read."""
        return self._scheduler.has_unfinished() or bool(self._unread)

    # -- the loop ------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """Advance by one step and return what became known.

        With a step in flight that is the outcome of the step before, or nothing. If the step
        fails, every running request goes back to the queue and the error is raised; the next step
        recomputes them.
        """
        start = time.perf_counter()
        check_alive(self.params)
        try:
            plan = self._scheduler.schedule()
            if plan.rows:
                self._in_flight.append(self._runner.dispatch(plan))
                self._tally.add_step(self._scheduler)
            if len(self._in_flight) > (self.config.steps_in_flight if plan.rows else 0):
                self._commit(self._in_flight.popleft())
        except BaseException:
            self._recover()
            raise
        finally:
            self._tally.elapsed_s += time.perf_counter() - start
        return self._read()

    def run(self, max_steps: int | None = None) -> list[RequestOutput]:
        """Step until all is done, or `max_steps` times; return the finished outputs."""
        finished = []
        while self.has_unfinished_requests() and max_steps != 0:
            finished += [each for each in self.step() if each.finished]
            max_steps = None if max_steps is None else max_steps - 1
        return finished

    def unread(self, outputs: Sequence[RequestOutput]) -> None:
        """Give back outputs of somebody else's requests; the next `step` returns them first."""
        self._unread = [*outputs, *self._unread]

    def _commit(self, done: InFlight) -> None:
        count = len(done.plan.sampling_rows)
        tokens = [] if done.tokens is None else np.asarray(done.tokens)[:count].tolist()
        if done.scores is not None:
            self._keep_scores(done.plan, np.asarray(done.scores))
        for request in self._scheduler.commit(done.plan, tokens):
            if request.score:
                continue
            self._tally.generated_tokens += 1
            self._unread.append(self._transcripts[request.id].snapshot())
            if request.is_finished:
                del self._transcripts[request.id]

    def _keep_scores(self, plan: Plan, scores: np.ndarray) -> None:
        first = 0
        for row in plan.chunks:
            if row.request in self._scores:
                kept = self._scores[row.request]
                kept[row.start : row.end] = scores[first : first + row.num_tokens]
            first += row.num_tokens

    def _drain(self) -> None:
        while self._in_flight:
            self._commit(self._in_flight.popleft())

    def _read(self) -> list[RequestOutput]:
        outputs, self._unread = self._unread, []
        return outputs

    def _recover(self) -> None:
        """After a failed step: nothing in flight, nothing running, a state that exists."""
        self._in_flight.clear()
        self._scheduler.restart()
        self._runner.recover()

    # -- scoring, weights, compilation ----------------------------------------------------------

    def compute_logprobs(self, token_lists: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Log probabilities of given tokens under the model, without generating.

        Returns one float32 array per list, of length len - 1: log p(token[i+1] | tokens[:i+1]).
        They share the pool and the steps with running requests, whose outputs the next `step`
        returns. Raises ValueError naming the index of a list that is empty, has ids outside the
        vocabulary, or is too long.
        """
        requests = [self._scoring_request(index, ids) for index, ids in enumerate(token_lists)]
        scored = [request for request in requests if len(request.tokens) > 1]
        self._scores |= {each: np.zeros(len(each.tokens) - 1, np.float32) for each in scored}
        try:
            for request in scored:
                self._scheduler.add(request)
            while not all(request.is_finished for request in scored):
                self.unread(self.step())
            return [self._scores.get(each, np.zeros(0, np.float32)) for each in requests]
        finally:
            for request in scored:
                del self._scores[request]
                if not request.is_finished:
                    self._scheduler.abort(request)

    def _scoring_request(self, index: int, token_ids: Sequence[int]) -> Request:
        self._num_arrivals += 1
        try:
            return self._intake.scoring(token_ids, self._num_arrivals - 1)
        except ValueError as error:
            raise ValueError(f"token list {index}: {error}") from None

    def update_params(self, params: Params, keep_prefix_cache: bool = False) -> None:
        """Use other weights of the same structure, shapes and dtypes; nothing is compiled.

        Steps in flight are finished first. A request that is running goes on with the keys that
        the old weights made for its earlier tokens. Raises ValueError naming every leaf that does
        not fit; the old params then stay.
        """
        if keep_prefix_cache:
            raise NotImplementedError("update_params(keep_prefix_cache=True) is not supported yet")
        check_replacement(self.params, params)
        self._drain()
        self._runner.params = params

    def warmup(self) -> CompileReport:
        """Compile every shape that serving can need, without running one."""
        return self._runner.warmup()

    def stats(self) -> EngineStats:
        """Counters and gauges, as plain numbers."""
        return self._tally.stats(self._scheduler, self._runner.num_compilations)

    def reset_prefix_cache(self) -> None:
        """Not supported yet."""
        raise NotImplementedError("reset_prefix_cache is not supported yet")

    def fork(
        self, request_id: str, new_request_ids: Sequence[str], seeds: Sequence[int] | None = None
    ) -> None:
        """Not supported yet."""
        raise NotImplementedError("fork is not supported yet")

    def rollback(self, request_id: str, num_tokens: int) -> None:
        """Not supported yet."""
        raise NotImplementedError("rollback is not supported yet")
