"""At most one KV pool is alive at any time, even after a failed step."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import jax
import pytest

from pagedjax import Engine, SamplingParams
from pagedjax.step.in_flight import InFlight
from tests.support.engine_runs import PROMPT, greedy
from tests.support.tiny_llama import finished, make_engine, tiny

SEEDED = SamplingParams(temperature=1.0, seed=42, max_tokens=12, ignore_eos=True)


@cache
def roomy() -> Engine:
    """An engine that never fails, for the expected tokens."""
    return make_engine(enable_prefix_caching=False)


@pytest.fixture(scope="module")
def heavy() -> Iterator[tuple[Engine, int]]:
    """An engine whose pool dominates its memory, and the live bytes before it was made."""
    tiny("base"), roomy()
    before = live_bytes()
    gc.freeze()  # keep gc.collect() from scanning the objects of other tests
    yield make_engine(num_blocks=1021), before
    gc.unfreeze()


def live_bytes() -> int:
    gc.collect()
    return sum(each.nbytes for each in jax.live_arrays())


def pools_alive(engine: Engine) -> int:
    """Number of live arrays of the pool's shape; one pool has two, keys and values."""
    shape = engine._runner._state.cache.k.shape  # also known for a deleted array
    return sum(each.shape == shape for each in jax.live_arrays())


def fail_once(engine: Engine, where: str, patch: pytest.MonkeyPatch) -> None:
    """Make the next program called `where` raise after it started and consumed its inputs."""
    programs, raised = engine._runner._programs, []
    lookup = programs._compile

    def started(run: Callable[..., Any], *args: Any) -> Any:
        result = run(*args)
        if not raised:
            raised.append(where)
            del result  # otherwise the traceback keeps it alive
            raise RuntimeError("device lost")
        return result

    def failing(key: tuple, *args: Any) -> Any:
        compiled = lookup(key, *args)
        return partial(started, compiled) if key[0] == where else compiled

    if where == "wait":
        wait = InFlight.wait
        patch.setattr(InFlight, "wait", lambda self: started(wait, self))
    else:
        patch.setattr(programs, "_compile", failing)


@pytest.mark.parametrize("steps_in_flight", [0, 1])
@pytest.mark.parametrize("where", ["forward", "sample", "wait"])
def test_after_a_failure_behind_a_dispatch_the_next_request_is_served(
    heavy: tuple[Engine, int], where: str, steps_in_flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running requests are recomputed, and only one pool is alive before and after."""
    engine, before = heavy
    engine.config = dataclasses.replace(engine.config, steps_in_flight=steps_in_flight)
    pool_bytes = sum(each.nbytes for each in jax.tree.leaves(engine._runner._state.cache))
    engine.add_request("victim", PROMPT, greedy(12))
    outputs = [output for _ in range(4) for output in engine.step()]
    with monkeypatch.context() as patch:
        fail_once(engine, where, patch)
        with pytest.raises(RuntimeError, match="device lost"):
            engine.step()
    engine.add_request("next", PROMPT[::-1], SEEDED)
    peak = 0
    while engine.has_unfinished_requests():
        outputs += engine.step()
        assert pools_alive(engine) == 2
        peak = max(peak, live_bytes() - before)
    assert pool_bytes <= peak < 1.2 * pool_bytes
    ids, reference = finished(outputs), roomy()
    reference.add_request("victim", PROMPT, greedy(12))
    reference.add_request("next", PROMPT[::-1], SEEDED)
    assert ids == finished(reference.run())
    assert engine.stats().num_referenced_blocks == 0


@pytest.mark.parametrize("where", ["forward", "sample"])
def test_a_lost_pool_is_freed_before_another_is_made(
    heavy: tuple[Engine, int], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old pool is freed although the traceback refers to it; a GPU has no room for two."""
    engine, _ = heavy
    make, alive = engine._runner._make_state, []

    def making(num_blocks: int) -> Any:
        shape = (len(engine.params["layers"]), num_blocks)
        alive.append(sum(each.shape[:2] == shape for each in jax.live_arrays()))
        return make(num_blocks)

    monkeypatch.setattr(engine._runner, "_make_state", making)
    engine.add_request(where, PROMPT, greedy(3))
    engine.step()
    fail_once(engine, where, monkeypatch)
    with pytest.raises(RuntimeError, match="device lost"):
        engine.step()
    assert len(finished(engine.run())[where]) == 3
    assert alive == [0]


def test_a_step_holds_one_pool(heavy: tuple[Engine, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also right after each program is dispatched while another step is in flight."""
    engine, _ = heavy
    engine.config = dataclasses.replace(engine.config, steps_in_flight=1)
    programs, seen = engine._runner._programs, []
    lookup = programs._compile

    def watched(key: tuple, *args: Any) -> Any:
        compiled = lookup(key, *args)

        def run(*arguments: Any) -> Any:
            result = compiled(*arguments)
            seen.append((key[0], pools_alive(engine)))
            return result

        return run

    monkeypatch.setattr(programs, "_compile", watched)
    engine.add_request("n", PROMPT, dataclasses.replace(SEEDED, n=3))
    engine.run()
    assert set(seen) == {("forward", 2), ("sample", 2), ("copy", 2)}
