"""SamplingParams: accepted and refused values; Request: properties and order."""

import dataclasses
import re

import numpy as np
import pytest

from pagedjax.sampling_params import SamplingParams
from pagedjax.schedule.request import Request, Status

NAN, INF = float("nan"), float("inf")
HUGE = 10**400  # an int too large for a float

DEFAULTS = {
    "n": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "seed": None,
    "max_tokens": 16, "min_tokens": 0, "stop": None, "stop_token_ids": None,
    "include_stop_str_in_output": False, "ignore_eos": False, "logit_bias": None,
    "allowed_token_ids": None, "bad_words": None, "logprobs": None, "prompt_logprobs": None,
    "skip_special_tokens": True, "detokenize": True, "cache_salt": None, "priority": 0,
    "extra": None, "output_kind": "cumulative",
}  # fmt: skip

REFUSED = {
    "n": [0, -1, 16385, 10**8, 1.0, "1", None, True],
    "temperature": [-1e-9, -1, NAN, INF, HUGE, -INF, "1", None, True],
    "top_p": [0, 0.0, -0.1, 1.0001, NAN, INF, HUGE, "1", None, True],
    "top_k": [-2, 1.5, "5", None, True, INF],
    "min_p": [-0.1, 1.1, NAN, INF, HUGE, "0", None, False],
    "repetition_penalty": [0, -1.0, NAN, INF, HUGE, "1", None, True],
    "presence_penalty": [NAN, INF, HUGE, -INF, "0", None],
    "frequency_penalty": [NAN, INF, HUGE, -INF, "0", None],
    "seed": [-1, 2**32, 1.0, "1", True, NAN],
    "max_tokens": [0, -1, 1.5, "16", True, INF],
    "min_tokens": [-1, 17, 0.5, "1", None, True],
    "stop_token_ids": [5, "5", [-1], [1.5], ["5"], [None], [True], 1.5, True],
    "stop": ["", [""], ["a", ""], 5, [5], [None], b"a", {"a"}, True],
    "include_stop_str_in_output": ["no", None, 2],
    "ignore_eos": ["no", None, 2],
    "skip_special_tokens": ["no", None, 2],
    "detokenize": ["no", None, 2],
    "logit_bias": [
        [3],
        {-1: 1.0},
        {3: INF},
        {3: NAN},
        {3: HUGE},
        {3: "1"},
        {"3": 1.0},
        {3.0: 1.0},
        5,
    ],
    "allowed_token_ids": [[], [-1], ["5"], [1.5], "5", 5, [True]],
    "bad_words": ["word", [""], ["  "], [5], [None], 5],
    "logprobs": [-1, 1.0, "1", True],
    "prompt_logprobs": [-1, 1.0, "1", True],
    "extra": [5, [1], "name"],
    "priority": [0.5, "0", None, True, NAN],
    "cache_salt": [1, b"salt", ["a"]],
    "output_kind": ["Delta", "", None, 0, True, ["delta"]],
}

ACCEPTED = {
    "temperature": [0, 0.0, 1e-12, 5, 100.0],
    "top_p": [1, 1e-6, 0.5],
    "top_k": [-1, 0, 1, 10**6],
    "min_p": [0, 1, 0.5],
    "seed": [0, 2**32 - 1],
    "max_tokens": [1, 10**9, None],
    "stop_token_ids": [[], [0, 7], (7,)],
    "min_tokens": [1, 16],
    "stop": ["a", " ", [], (), ["a"], ("a", "bc"), None],
    "include_stop_str_in_output": [True],
    "priority": [-5, 5],
    "ignore_eos": [True],
    "skip_special_tokens": [False],
    "detokenize": [False],
    "repetition_penalty": [0.5, 1.7],
    "presence_penalty": [-2.0, 2.0],
    "frequency_penalty": [-2.0, 2],
    "logit_bias": [{}, {3: -100.0, 0: 1}],
    "allowed_token_ids": [[3], (0, 5)],
    "bad_words": [[], ["x", "two words"]],
    "logprobs": [0, 5],
    "prompt_logprobs": [0, 1],
    "extra": [{"name": 1.0}],
    "n": [1, 8, 16384],
    "cache_salt": ["salt", None],
    "output_kind": ["cumulative", "delta", "final_only"],
}


def pairs(table):
    cases = [(name, value) for name, values in table.items() for value in values]
    return pytest.mark.parametrize(("name", "value"), cases, ids=lambda case: repr(case))


def test_the_defaults_are_those_of_the_contract():
    assert {f.name: f.default for f in dataclasses.fields(SamplingParams)} == DEFAULTS


def test_every_field_is_checked():
    assert set(REFUSED) == set(DEFAULTS)


@pairs(REFUSED)
def test_a_value_out_of_range_is_named(name, value):
    with pytest.raises(ValueError, match=f"{name}={re.escape(repr(value))}"):
        SamplingParams(**{name: value})


@pairs(ACCEPTED)
def test_a_value_within_range_is_kept(name, value):
    assert getattr(SamplingParams(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "plain"),
    [
        ("seed", np.random.default_rng(0).integers(2**32, dtype=np.uint32), 3653403231),
        ("seed", np.int64(7), 7),
        ("max_tokens", np.int16(3), 3),
        ("temperature", np.float32(0.5), 0.5),
        ("top_p", np.float64(0.25), 0.25),
        ("stop_token_ids", np.array([3, 4]), [3, 4]),
        ("stop_token_ids", {3}, [3]),
        ("stop_token_ids", [np.int32(3)], [3]),
        ("allowed_token_ids", (np.int64(5), 6), (5, 6)),
        ("logit_bias", {np.int64(3): np.float32(1.5)}, {3: 1.5}),
    ],
)
def test_numpy_numbers_become_python_numbers(name, value, plain):
    """Users get such numbers from numpy's random generators and from loops over arrays."""
    kept = getattr(SamplingParams(**{name: value}), name)
    assert (kept, repr(kept)) == (plain, repr(plain))


@pytest.mark.parametrize("name", DEFAULTS)
def test_params_are_frozen(name):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(SamplingParams(), name, DEFAULTS[name])


def test_fewer_max_tokens_than_min_tokens_names_both():
    with pytest.raises(ValueError, match="min_tokens=3.*max_tokens=2"):
        SamplingParams(min_tokens=3, max_tokens=2)


def test_no_tokens_at_all_points_to_scoring():
    with pytest.raises(ValueError, match="compute_logprobs"):
        SamplingParams(max_tokens=0)


# -- Request --------------------------------------------------------------------------------------


def request(**changes):
    fields = {
        "id": "a", "arrival": 3, "tokens": [1, 2, 3, 4, 5], "num_prompt": 3,
        "params": SamplingParams(priority=-2), "seed": 0, "max_len": 9,
        "stop_ids": frozenset(), "eos_ids": frozenset(),
    } | changes  # fmt: skip
    return Request(**fields)


def test_priority_orders_before_arrival():
    assert request().order == (-2, 3, 0)


def test_num_tokens_includes_tokens_in_flight():
    assert request(num_pending=1).num_tokens == 6


def test_uncomputed_tokens_include_tokens_in_flight():
    assert request(num_pending=1, num_computed=4).num_uncomputed == 2


@pytest.mark.parametrize(("num_prompt", "output"), [(5, []), (3, [4, 5])])
def test_the_output_is_what_follows_the_prompt(num_prompt, output):
    assert request(num_prompt=num_prompt).output_ids == output


@pytest.mark.parametrize("status", Status)
def test_a_request_is_finished_by_its_status(status):
    assert request(status=status).is_finished == (status is Status.FINISHED)


def test_requests_with_equal_fields_are_not_equal():
    assert len({request(), request()}) == 2
