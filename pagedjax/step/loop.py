"""The step loop: schedule on the host, dispatch to the device, commit the tokens when they arrive.

With one step in flight, step n+1 is dispatched before the tokens of step n are read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from pagedjax.schedule.plan import Plan
from pagedjax.schedule.request import Request
from pagedjax.schedule.scheduler import Scheduler
from pagedjax.schedule.tally import Tally
from pagedjax.step.in_flight import InFlight
from pagedjax.step.runner import Runner
from pagedjax.step.scores import Scores
from pagedjax.text.transcripts import Transcripts


class StepLoop:
    """Advances a scheduler, a runner and the transcripts together."""

    def __init__(
        self, runner: Runner, scheduler: Scheduler, transcripts: Transcripts, steps_in_flight: int
    ) -> None:
        self._runner, self._scheduler, self._transcripts = runner, scheduler, transcripts
        self._steps_in_flight = steps_in_flight
        self._in_flight: deque[InFlight] = deque()
        self.scores = Scores()
        self.tally = Tally()

    def step(self) -> None:
        """Dispatch the next step, if there is one, and commit the oldest step that is due."""
        with self.tally.time.step():
            self._runner.check_alive()
            with self._recovering():
                plan = self._scheduler.schedule()
                if plan.rows:
                    self._dispatch(plan)
                if len(self._in_flight) > (self._steps_in_flight if plan.rows else 0):
                    self._commit(self._in_flight.popleft())

    def drain(self) -> None:
        """Commit all steps in flight."""
        with self._recovering():
            while self._in_flight:
                self._commit(self._in_flight.popleft())

    def drained_sample(self, request_id: str, what: str) -> Request:
        """The live request of that id, with nothing of it in flight; see `only_sample`."""
        self.drain()
        return self._transcripts.only_sample(request_id, what)

    def _dispatch(self, plan: Plan) -> None:
        dispatched = self._runner.dispatch(plan)
        self.tally.time.dispatch(all(each.is_done for each in self._in_flight))
        self._in_flight.append(dispatched)
        self.tally.add_step(self._scheduler, plan.num_tokens, dispatched.padded_tokens)

    def _commit(self, done: InFlight) -> None:
        with self.tally.time.waiting():
            done.wait()
        tokens = done.read_tokens()
        self.scores.take(done.plan, tokens, done.logprobs, done.scores, done.ranked)
        progressed = [r for r in self._scheduler.commit(done.plan, tokens) if not r.score]
        self._transcripts.advance(progressed, self._scheduler.stop)

    @contextmanager
    def _recovering(self) -> Iterator[None]:
        """After a failure, drop the steps in flight, restart the requests and rebuild the state."""
        try:
            yield
        except BaseException:
            self._in_flight.clear()
            self._scheduler.restart()
            self._runner.recover()
            raise
