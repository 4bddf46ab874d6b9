"""Tiny random models compared with Hugging Face in float32: all logits, and greedy ids."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from pagedjax import SamplingParams
from pagedjax.devices.mesh import make_mesh
from pagedjax.schedule.plan import Plan, Row
from pagedjax.schedule.request import Request
from pagedjax.step.batch import Buckets, Packer, Shape
from pagedjax.step.forward import forward, logits_of
from pagedjax.step.state import StepConfig, make_state
from tests.support import numpy_llama
from tests.support.tiny_llama import finished, make_engine, tiny
from tests.support.tiny_models import VARIANTS, golden_tokens, hf_config, hf_tensors

GOLDENS = Path(__file__).parents[1] / "goldens"
TOKENS = [int(token) for token in golden_tokens()]


SLOW = pytest.mark.slow
# The kernels only see where keys are written and read. The quick tests run them for these two
# variants, and test what differs elsewhere in a variant with XLA attention.
KERNELS = ("head_dim", "all")
EACH = pytest.mark.parametrize(
    ("name", "attention"),
    [(name, "xla") for name in VARIANTS]
    + [
        pytest.param(name, "pallas_interpret", marks=[] if name in KERNELS else SLOW)
        for name in VARIANTS
    ],
)


@cache
def whole_logits(name: str, attention: str) -> np.ndarray:  # [S, V]
    """Logits of every golden position from one chunk through the paged pool."""
    config, params = tiny(name)
    step_config = StepConfig(config, make_mesh(), attention)
    request = Request("r", TOKENS, len(TOKENS), SamplingParams(), 512, frozenset(), frozenset())
    request.slot, request.block_ids = 1, [7, 3, 20, 1, 12, 0, 9, 15, 4, 11]
    plan = Plan([], [Row(request, 0, len(TOKENS), samples=(request,))])
    packer = Packer(Buckets(2, len(TOKENS)), num_blocks=24, block_size=16, table_width=16)
    state = make_state(step_config, 24, 16, "float32", 2)
    batch = packer.pack(plan, Shape(2, len(TOKENS), 2))
    _, hidden, _ = forward(step_config, params, state, batch)
    return np.asarray(logits_of(step_config, params, hidden))


@EACH
def test_logits_equal_hugging_face(name: str, attention: str) -> None:
    golden = np.load(GOLDENS / "tiny_logits.npz")[name]
    difference = np.abs(whole_logits(name, attention) - golden)
    assert difference[100:].max() < 2e-4
    assert difference.max() < 2e-4


@EACH
def test_logits_equal_the_naive_float64_forward(name: str, attention: str) -> None:
    reference = numpy_llama.forward(hf_config(name), hf_tensors(name), TOKENS)
    assert np.abs(whole_logits(name, attention) - reference).max() < 2e-4


@pytest.mark.parametrize("place", ["nested only", "top level only", "nested without theta"])
def test_rope_theta_is_found_in_every_config_layout(place: str) -> None:
    from pagedjax import ModelConfig

    config = {k: v for k, v in hf_config("theta").items() if not k.startswith("rope")}
    config |= {
        "nested only": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
        "top level only": {"rope_theta": 500000.0},
        "nested without theta": {"rope_scaling": {"type": "default"}, "rope_theta": 500000.0},
    }[place]
    assert ModelConfig.from_hf(config) == tiny("theta")[0]


XLA = [("xla", in_flight, blocks, 4) for blocks in (64, 20) for in_flight in (0, 1)]
INTERPRETED = ("pallas_interpret", 1, 10, 8)


@pytest.mark.parametrize(
    ("name", "attention", "steps_in_flight", "num_blocks", "block_size"),
    [
        *((name, *each) for name in ("base", "all") for each in XLA),
        ("all", *INTERPRETED),
        pytest.param("base", *INTERPRETED, marks=SLOW),
        # The quick case above has a smaller pool, which also forces preemption.
        *(pytest.param(name, "pallas_interpret", 1, 64, 8, marks=SLOW) for name in ("base", "all")),
    ],
)
def test_greedy_ids_equal_hugging_face(
    name: str, attention: str, steps_in_flight: int, num_blocks: int, block_size: int
) -> None:
    golden = json.loads((GOLDENS / "tiny_greedy.json").read_text())[name]
    engine = make_engine(
        name, attention=attention, steps_in_flight=steps_in_flight, num_blocks=num_blocks,
        block_size=block_size,
    )  # fmt: skip
    for index, each in enumerate(golden):
        params = SamplingParams(temperature=0, max_tokens=len(each["output"]), ignore_eos=True)
        engine.add_request(str(index), each["prompt"], params)
    outputs = finished(engine.run())
    assert outputs == {str(index): each["output"] for index, each in enumerate(golden)}
    assert (engine.stats().num_preemptions > 0) == (num_blocks < 64)
    assert engine.stats().num_referenced_blocks == 0


@pytest.mark.parametrize("budget", [1, 7, 16, 512])
def test_scored_logprobs_do_not_depend_on_the_chunks(budget: int) -> None:
    golden = np.load(GOLDENS / "tiny_logits.npz")["base"].astype(np.float64)
    golden -= np.log(np.exp(golden).sum(axis=-1, keepdims=True))
    expected = golden[np.arange(len(TOKENS) - 1), TOKENS[1:]]
    engine = make_engine(max_num_batched_tokens=budget)
    scores = engine.compute_logprobs([TOKENS, TOKENS[:1], TOKENS[:40]])
    assert np.abs(scores[0] - expected).max() < 2e-5
    assert scores[1].shape == (0,)
    assert np.abs(scores[2] - expected[:39]).max() < 2e-5
