"""Failed and interrupted steps lose no request; options that do not fit are refused."""

from __future__ import annotations

from typing import Any

import pytest

from pagedjax import SamplingParams
from pagedjax.step.in_flight import InFlight
from tests.support.engine_runs import PROMPT, check_all_home, solo
from tests.support.tiny_llama import GREEDY, finished, make_engine

pytestmark = pytest.mark.usefixtures("attention")

SEEDED = SamplingParams(temperature=1.0, seed=42, max_tokens=12, ignore_eos=True, top_p=0.95)


@pytest.mark.parametrize("steps_in_flight", [0, 1])
@pytest.mark.parametrize("lose_state", [False, True])
def test_a_failed_step_is_raised_and_the_next_ones_go_on(
    steps_in_flight: int, lose_state: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(steps_in_flight=steps_in_flight)
    engine.add_request("a", PROMPT, GREEDY)
    engine.add_request("b", PROMPT[::-1], SEEDED)
    outputs = [output for _ in range(4) for output in engine.step()]

    def fail(*_: Any) -> None:
        if lose_state:
            engine._runner._state.cache.k.delete()
        raise RuntimeError("device lost")

    with monkeypatch.context() as patch:
        patch.setattr(engine._runner._programs, "sample", fail)
        with pytest.raises(RuntimeError, match="device lost"):
            engine.step()
    outputs += engine.run()
    expected = {"a": solo(PROMPT, GREEDY), "b": solo(PROMPT[::-1], SEEDED)}
    assert finished(outputs) == expected
    check_all_home(engine)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_model_len": 1024}, ValueError, "max_model_len=1024 exceeds the 512 positions"),
        ({"num_blocks": None, "kv_cache_bytes": 100}, MemoryError, "100 bytes are left"),
        ({"attention": "pallas"}, ValueError, "'pallas' needs an NVIDIA GPU.*use 'xla'"),
    ],
)
def test_engine_options_that_do_not_fit(options: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        make_engine(**options)


def test_an_interrupt_while_steps_are_finished_loses_no_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, GREEDY)
    outputs = [output for _ in range(4) for output in engine.step()]

    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(InFlight, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.update_params(engine.params)
    outputs += engine.run(max_steps=200)
    assert finished(outputs) == {"a": solo(PROMPT, GREEDY)}
    check_all_home(engine)
