"""Beam search on an engine: beams are requests that fork and share the blocks of their prefix.

The rules are those of Hugging Face's `generate(num_beams=width, early_stopping=False)`:

- Each step ranks the continuations of all running beams by their summed log probability and
  considers the best (1 + number of end ids, at least 2) x width.
- A continuation that ends (by an end id, or at `max_tokens`) is finished if it ranks among the
  best `width`, and dropped otherwise. The best `width` that do not end continue.
- The score of a finished sequence is its sum divided by length ** length_penalty. The length counts
  generated tokens, including the end id. The best `width` finished sequences are kept.
- The search stops once `width` sequences are finished and the best running beam, scored at its
  present length, does not beat the worst of them.

Ties go to the earlier beam, then to the lower token id, then to the sequence finished first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pagedjax.checks.values import is_finite, plain_number
from pagedjax.engine import Engine
from pagedjax.intake.prompts import Prompt
from pagedjax.sampling_params import SamplingParams
from pagedjax.schedule.request import Request, num_candidates
from pagedjax.text.detokenizer import Detokenizer

MAX_LENGTH_PENALTY = 16


@dataclass(frozen=True)
class BeamSequence:
    """One finished sequence. `score` is `cumulative_logprob` / length ** length_penalty."""

    token_ids: list[int]
    text: str
    score: float
    cumulative_logprob: float


@dataclass(frozen=True)
class BeamSearchOutput:
    """The best `beam_width` sequences of one prompt, best first."""

    prompt_token_ids: list[int]
    sequences: list[BeamSequence]


class _Choice(NamedTuple):
    """A continuation: beam `parent` followed by `token`; `total` is the summed log probability."""

    total: float
    parent: int
    token: int


@dataclass
class Beams:
    """The search of one prompt, in plain Python.

    running: generated ids and summed log probability of each running beam, best first.
    """

    width: int
    max_tokens: int
    length_penalty: float
    end_ids: frozenset[int]
    running: list[tuple[list[int], float]] = field(default_factory=lambda: [([], 0.0)])
    finished: list[tuple[float, float, list[int]]] = field(default_factory=list)
    is_done: bool = False

    @property
    def num_candidates(self) -> int:
        """Continuations considered per step."""
        return num_candidates(self.width, self.end_ids)

    def advance(self, candidates: Sequence[Sequence[tuple[int, float]]]) -> list[_Choice]:
        """Take each running beam's most likely next tokens; return the beams that continue."""
        choices = [
            _Choice(total + logprob, parent, token)
            for parent, (_, total) in enumerate(self.running)
            for token, logprob in candidates[parent]
        ]
        choices.sort(key=lambda choice: (-choice.total, choice.parent, choice.token))
        length = len(self.running[0][0]) + 1
        going_on: list[_Choice] = []
        for rank, choice in enumerate(choices[: self.num_candidates]):
            if choice.token in self.end_ids or length == self.max_tokens:
                if rank < self.width:
                    self._finish(choice, length)
            elif len(going_on) < self.width:
                going_on.append(choice)
        self._stop_if_decided(going_on, length)
        self.running = [(self._ids(choice), choice.total) for choice in going_on]
        return [] if self.is_done else going_on

    def _finish(self, choice: _Choice, length: int) -> None:
        score = choice.total / length**self.length_penalty
        self.finished.append((score, choice.total, self._ids(choice)))
        self.finished.sort(key=lambda each: -each[0])  # stable: what finished first stays first
        del self.finished[self.width :]

    def _stop_if_decided(self, going_on: Sequence[_Choice], length: int) -> None:
        is_full = len(self.finished) == self.width
        self.is_done = not going_on or (
            is_full and going_on[0].total / length**self.length_penalty <= self.finished[-1][0]
        )

    def _ids(self, choice: _Choice) -> list[int]:
        return [*self.running[choice.parent][0], choice.token]


@dataclass
class _Search:
    """One prompt's beams, and the requests of the running ones in the same order."""

    prompt_ids: list[int]
    beams: Beams
    requests: list[Request]

    @property
    def is_ranked(self) -> bool:
        return all(each.candidates is not None for each in self.requests)


class BeamSearch:
    """Beam searches of several prompts, run together on one engine."""

    def __init__(
        self, engine: Engine, beam_width: int, max_tokens: int | None, length_penalty: float
    ) -> None:
        self._num_candidates = engine.intake.num_candidates(beam_width)
        length_penalty = plain_number(length_penalty)
        # With a larger penalty, length ** penalty overflows a float.
        if not is_finite(length_penalty) or abs(length_penalty) > MAX_LENGTH_PENALTY:
            raise ValueError(
                f"length_penalty={length_penalty!r} must be a number from -{MAX_LENGTH_PENALTY} to "
                f"{MAX_LENGTH_PENALTY}"
            )
        self._engine = engine
        self._width = int(beam_width)
        self._length_penalty = length_penalty
        self._params = SamplingParams(temperature=0.0, max_tokens=max_tokens)

    def run(self, prompts: Sequence[Prompt]) -> list[BeamSearchOutput]:
        """Search all prompts to the end. No request stays in the engine, also after an error."""
        engine = self._engine
        with engine.caller.turn():
            searches = [self._begin(prompt) for prompt in prompts]
        try:
            with engine.caller.turn():
                for search in searches:
                    first = engine.intake.admit(search.requests[0])
                    engine.scheduler.add(first)
            while any(search.requests for search in searches):
                with engine.caller.turn():  # other threads may call between two steps
                    engine.step_for(())
                    for search in searches:
                        if search.requests and search.is_ranked:
                            search.requests = self._branch(search.beams, search.requests)
            return [self._output(search) for search in searches]
        finally:
            with engine.caller.turn():
                for search in searches:
                    for request in search.requests:
                        engine.scheduler.abort(request)

    def _begin(self, prompt: Prompt) -> _Search:
        engine = self._engine
        request = engine.intake.request("beam", prompt, self._params)
        beams = Beams(
            self._width, request.max_len - request.num_prompt, self._length_penalty, request.eos_ids
        )
        request.num_candidates = self._num_candidates
        return _Search(list(request.tokens), beams, [request])

    def _branch(self, beams: Beams, requests: list[Request]) -> list[Request]:
        """Continue the surviving beams; a parent's last continuation takes over its blocks."""
        going_on = beams.advance([each.candidates or [] for each in requests])
        branches = []
        for position, choice in enumerate(going_on):
            parent = requests[choice.parent]
            if any(later.parent == choice.parent for later in going_on[position + 1 :]):
                child = parent.copy(
                    arrival=self._engine.intake.next_arrival(),
                    tokens=[*parent.tokens, choice.token],
                    num_candidates=parent.num_candidates,
                )
                self._engine.scheduler.fork(parent, child)
            else:
                child = parent
                child.tokens.append(choice.token)
                child.candidates = None
                self._engine.scheduler.resume(child)
            branches.append(child)
        for request in requests:
            if request not in branches:
                self._engine.scheduler.abort(request)
        return branches

    def _output(self, search: _Search) -> BeamSearchOutput:
        tokenizer = self._engine.tokenizer
        sequences = []
        for score, total, ids in search.beams.finished:
            text = ""
            if tokenizer is not None:
                text = Detokenizer(tokenizer, search.prompt_ids).append(ids, final=True)
            sequences.append(BeamSequence(ids, text, score, total))
        return BeamSearchOutput(search.prompt_ids, sequences)
