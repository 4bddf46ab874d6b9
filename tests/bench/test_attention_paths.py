"""The attention benchmark's implementations against the reference, and its timer."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench.attention import device_timer, jax_attention
from bench.attention import problem as attention_problem
from bench.attention import trial as attention_trial
from bench.attention.paths import PATHS, Prepared
from bench.attention.shapes import decode
from tests.support.attention_cases import CHUNKS, CPU, INTERPRETED, PROMPTS, RAGGED, SMALL


def difference(prepared, problem, layer=1):
    wanted = attention_problem._looped(problem, layer)
    got = np.asarray(prepared.once(problem, layer), np.float32)
    return np.abs(got - wanted).max() / np.abs(wanted).max()


@pytest.mark.parametrize("dtype", ["bf16", "int8", "fp8"])
@pytest.mark.parametrize("case", [RAGGED, CHUNKS], ids=["decode", "chunks"])
def test_xla_paths_agree_with_the_reference(case, dtype):
    problem = attention_problem.make_problem(case, dtype, 16, layers=2)
    for name in ("xla-gather", "xla-online"):
        assert difference(PATHS[name](problem, CPU), problem) < 6e-3


@pytest.mark.parametrize(("case", "dtype"), [(RAGGED, "int8"), (CHUNKS, "bf16")])
def test_the_exact_answer_is_the_references(monkeypatch, case, dtype):
    """The XLA version of `exact`, which large cases use."""
    problem = attention_problem.make_problem(case, dtype, 16, layers=2)
    monkeypatch.setattr(attention_problem, "LOOP_PAIRS", 0)
    monkeypatch.setattr(attention_problem, "QUERIES_AT_ONCE", 32)
    looped = attention_problem._looped(problem, 1)
    np.testing.assert_allclose(attention_problem.exact(problem, 1), looped, atol=2e-6)


@pytest.mark.parametrize("dtype", ["bf16", "int8", "fp8"])
def test_jaxs_own_kernel_agrees_through_its_adapter(dtype):
    problem = attention_problem.make_problem(RAGGED, dtype, 16, layers=2)
    assert difference(PATHS["jax-paged"](problem, INTERPRETED), problem) < 1e-2


@pytest.mark.parametrize(
    ("pages", "wanted"), [(1, (1, 1)), (8, (8, 1)), (256, (16, 8)), (48, (16, 1)), (96, (16, 2))]
)
def test_jaxs_own_kernel_gets_pages_that_divide(pages, wanted):
    splits, at_once = jax_attention.split_pages(pages)
    assert (splits, at_once) == wanted and pages % (splits * at_once) == 0


@pytest.mark.parametrize(
    "case", [RAGGED, decode(SMALL, 3, 64), PROMPTS], ids=["decode", "uniform", "prompts"]
)
def test_dense_attention_agrees_through_its_adapter(case):
    """Runs XLA's implementation; cuDNN's takes the same arguments."""
    problem = attention_problem.make_problem(case, "bf16", 16, layers=2)
    run, layers = jax_attention.dense(problem, "xla")
    prepared = Prepared(lambda q, layer, operands: run(q, operands), layers, by_layer=True)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        assert difference(prepared, problem) < 1e-2


def test_dense_attention_refuses_what_it_cannot_express():
    chunks = attention_problem.make_problem(CHUNKS, "bf16", 16, layers=1)
    with pytest.raises(NotImplementedError, match="starts at the first key"):
        jax_attention.dense(chunks, "cudnn")
    stored = attention_problem.make_problem(RAGGED, "int8", 16, layers=1)
    with pytest.raises(NotImplementedError, match="one-byte"):
        jax_attention.dense(stored, "cudnn")


def test_a_path_that_disagrees_is_not_timed():
    problem = attention_problem.make_problem(RAGGED, "bf16", 16, layers=1)
    wanted = attention_problem.exact(problem, 0)

    def wrong(problem, where):
        return Prepared(lambda q, layer, operands: q, ())

    def broken(problem, where):
        raise RuntimeError("first line\nsecond")

    found, prepared = attention_trial.check(problem, wrong, CPU, wanted)
    assert (found["status"], prepared) == ("disagrees", None) and found["difference"] > 0.1
    found, prepared = attention_trial.check(problem, broken, CPU, wanted)
    assert (found["status"], found["reason"]) == ("failed", "RuntimeError: first line")


def test_blocks_are_long_enough_and_divided_by_their_calls(monkeypatch):
    """A program of 3 ms with 3 calls: blocks take at least 20 ms, a call about 1 ms."""

    def program(value):
        time.sleep(0.003)
        return value

    timing = device_timer.measure(program, jnp.zeros(1), calls=3, repeats=3)
    assert timing.calls_per_block >= 3 * 6 and len(timing.blocks) == 3
    assert 0.001 <= timing.median < 0.004


@pytest.mark.parametrize("name", ["xla-gather", "xla-online"])
def test_chains_go_through_the_layers_and_feed_the_output_back(name):
    """Chained as on a GPU and dispatched as on a CPU, the result equals that of single calls."""
    problem = attention_problem.make_problem(RAGGED, "bf16", 16, layers=2)
    prepared = PATHS[name](problem, CPU)
    by_hand = [problem.q]
    for layer in (0, 1, 0, 1):
        by_hand.append(prepared.compiled(by_hand[-1], jnp.int32(layer), prepared.operands))

    class Kept(device_timer.Timed):
        def __init__(self, program, value, calls):
            self.out, self.calls = program(value), calls

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_timer, "Timed", Kept)
        chained, dispatched = prepared.timed(problem, 2), prepared.timed(problem, 1)
    for kept, calls in ((chained, 4), (dispatched, 2)):
        assert kept.calls == calls
        got, wanted = (np.asarray(each, np.float32) for each in (kept.out, by_hand[calls]))
        np.testing.assert_allclose(got, wanted, atol=1e-2 * np.abs(wanted).max())
