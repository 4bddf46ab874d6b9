"""The attention benchmark: its arithmetic, its adapters, its clock, its tuner, a small run."""

import json
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench.attention import command as attention
from bench.attention import device_timer, interpreted, jax_attention, roofline, tuning
from bench.attention import problem as attention_problem
from bench.attention import report as attention_report
from bench.attention import trial as attention_trial
from bench.attention.paths import PATHS, Prepared, Where
from bench.attention.shapes import MODELS, Case, Heads, decode, decode_grid, prefill_grid
from pagedjax.config import ModelConfig
from pagedjax.layers.kv_cache import block_bytes
from pallas_kernels import tiles
from pallas_kernels.tiles import DecodeTiles, PrefillTiles

MIB = 1 << 20
SMALL = Heads("small", 6, 2, 64)
CPU = Where(jax.devices()[0])
INTERPRETED = Where(jax.devices()[0], interpret=True)
RAGGED = Case(SMALL, "decode", "", (1, 33, 70, 128), (1, 1, 1, 1))
CHUNKS = Case(SMALL, "prefill", "", (33, 70, 128), (1, 70, 40))
PROMPTS = Case(SMALL, "prefill", "", (33, 70, 128), (33, 70, 128))


@pytest.fixture(autouse=True)
def small_copies(monkeypatch):
    monkeypatch.setattr(roofline, "CPU_COPY_BYTES", MIB)
    monkeypatch.setattr(roofline, "CPU_SQUARE", 128)


def difference(prepared, problem, layer=1):
    wanted = attention_problem._looped(problem, layer)
    got = np.asarray(prepared.once(problem, layer), np.float32)
    return np.abs(got - wanted).max() / np.abs(wanted).max()


# -- arithmetic -----------------------------------------------------------------------------------


def test_bytes_and_intensity_of_llama_3_8b():
    """32 rows x 4,096 keys x 2 x 8 kv heads x 128 numbers of 2 bytes."""
    work = roofline.work(decode(MODELS["llama-3-8b"], 32, 4096), "bf16")
    assert work.kv_bytes == 32 * 4096 * 2 * 8 * 128 * 2 == 512 * MIB
    assert work.scale_bytes == 0
    assert work.query_bytes == 2 * 32 * 32 * 128 * 2 == MIB // 2
    assert work.flops == 32 * 4096 * 32 * 128 * 4 == 2 << 30
    assert work.intensity == pytest.approx((2 << 30) / (512.5 * MIB)) == pytest.approx(3.996, 1e-3)


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_bytes_of_one_byte_pools(dtype):
    """Half of bfloat16's, and a scale for each of 32 x 4,096 x 2 x 8 vectors, as the pool has."""
    work = roofline.work(decode(MODELS["llama-3-8b"], 32, 4096), dtype)
    assert work.kv_bytes == 256 * MIB
    assert work.scale_bytes == 32 * 4096 * 2 * 8 * roofline.scale_itemsize(dtype)
    one_layer = ModelConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_layers=1, num_heads=32,
        num_kv_heads=8, head_dim=128,
    )  # fmt: skip
    assert work.kv_bytes + work.scale_bytes == block_bytes(one_layer, 16, dtype) * 32 * 4096 // 16


def test_flops_of_a_prompt_are_those_of_a_triangle():
    """8 queries see 1 + 2 + ... + 8 keys; the last 2 of 8 see 7 + 8."""
    heads = Heads("one", 1, 1, 16)
    assert roofline.work(Case(heads, "prefill", "", (8,), (8,)), "bf16").flops == 36 * 16 * 4
    assert roofline.work(Case(heads, "prefill", "", (8,), (2,)), "bf16").flops == 15 * 16 * 4


def test_layers_outgrow_caches_and_keep_to_what_kernels_take():
    """128 rows of 16,384 keys have 2**31 elements a layer: two layers of bytes are refused."""
    heads = MODELS["llama-3-8b"]
    assert attention_problem.num_layers(decode(heads, 1, 256), "bf16") == 8
    assert attention_problem.num_layers(decode(heads, 32, 4096), "bf16") == 2
    large = decode(heads, 128, 16384)
    assert [attention_problem.num_layers(large, each) for each in ("bf16", "int8")] == [2, 3]


def test_grids():
    cases = list(decode_grid(SMALL, (1, 8), (64, 128)))
    assert [case.rows for case in cases] == [1, 1, 8, 8, 8]
    mixed = cases[-1]
    assert not mixed.is_uniform and 16 <= min(mixed.contexts) and max(mixed.contexts) == 128
    prompt, chunk, mix = prefill_grid(SMALL, 64)
    assert (prompt.contexts, prompt.queries, prompt.starts_empty) == ((256,), (256,), True)
    assert (chunk.contexts, chunk.queries, chunk.starts_empty) == ((320,), (64,), False)
    assert mix.contexts == (64, 32, 16, 8, 4, 2) and mix.starts_empty


# -- agreement ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bf16", "int8", "fp8"])
@pytest.mark.parametrize("case", [RAGGED, CHUNKS], ids=["decode", "chunks"])
def test_xla_paths_agree_with_the_reference(case, dtype):
    problem = attention_problem.make_problem(case, dtype, 16, layers=2)
    for name in ("xla-gather", "xla-online"):
        assert difference(PATHS[name](problem, CPU), problem) < 6e-3


@pytest.mark.parametrize(("case", "dtype"), [(RAGGED, "int8"), (CHUNKS, "bf16")])
def test_the_exact_answer_is_the_references(monkeypatch, case, dtype):
    """That of large cases, which no loop could check."""
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
    """In XLA; with cuDNN's implementation it takes the same arguments."""
    problem = attention_problem.make_problem(case, "bf16", 16, layers=2)
    run, layers = jax_attention.dense(problem, "xla")
    prepared = Prepared(lambda q, layer, operands: run(q, operands), layers, by_layer=True)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        assert difference(prepared, problem) < 1e-2


def test_dense_attention_refuses_what_it_cannot_express():
    chunks = attention_problem.make_problem(CHUNKS, "bf16", 16, layers=1)
    with pytest.raises(NotImplementedError, match="begins at the first key"):
        jax_attention.dense(chunks, "cudnn")
    stored = attention_problem.make_problem(RAGGED, "int8", 16, layers=1)
    with pytest.raises(NotImplementedError, match="one byte"):
        jax_attention.dense(stored, "cudnn")


def test_what_disagrees_is_said_and_not_timed():
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


# -- the clock ------------------------------------------------------------------------------------


def test_blocks_are_long_enough_and_divided_by_their_calls(monkeypatch):
    """A program of 3 ms with 3 calls: blocks of at least 20 ms, and about 1 ms a call."""

    def program(value):
        time.sleep(0.003)
        return value

    timing = device_timer.measure(program, jnp.zeros(1), calls=3, repeats=3)
    assert timing.calls_per_block >= 3 * 6 and len(timing.blocks) == 3
    assert 0.001 <= timing.median < 0.004


@pytest.mark.parametrize("name", ["xla-gather", "xla-online"])
def test_chains_go_through_the_layers_and_feed_the_output_back(name):
    """As on a GPU, in one program, and as on a CPU: what calls by hand give."""
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


# -- tuning ---------------------------------------------------------------------------------------


def fake_seconds(chosen):
    """As if large blocks were fast, one did not compile, and splits cost a little."""
    if isinstance(chosen, PrefillTiles):
        return 1.0 if chosen.rows == 64 else 2.0
    if chosen.num_warps == 2:
        raise RuntimeError("ptxas says no")
    return 1.0 / chosen.block_tokens + 0.001 * chosen.splits


def test_the_tuned_table_is_what_the_kernels_then_use(monkeypatch, tmp_path):
    monkeypatch.setattr(tiles, "TUNED", tmp_path / "tuned")
    tiles.tuned.cache_clear()
    case, prompt = decode(SMALL, 4, 1024), Case(SMALL, "prefill", "", (64,), (64,))
    found = {}
    for each in (case, prompt):
        problem = attention_problem.make_problem(each, "bf16", 16, layers=1)
        done = tuning.explore(problem, CPU, fake_seconds, time.monotonic() + 60)
        found[tuning.key_of(each, "bf16", 16)] = done.best
        assert len(done.notes) == sum("ptxas" in note for note in done.notes)
    decoding, prefilling = found.values()
    assert (decoding.block_tokens, decoding.splits, prefilling.rows) == (128, 1, 64)
    name = tiles.H200.name
    path = tiles.save_table(name, found, {"device": name})
    assert json.loads(path.read_text())["header"] == {"device": name}
    arguments = (4, 2, 64, 1024, "bfloat16", "bfloat16")
    assert tiles.decode_tiles(*arguments) == decoding
    assert tiles.decode_tiles(400, *arguments[1:]) != decoding
    assert tiles.prefill_tiles(64, 3, "bfloat16", "bfloat16") == prefilling
    # A later run adds to the table, and replaces what it measured again.
    newer = DecodeTiles(32, 2)
    tiles.save_table(name, tuning.merged(name, {next(iter(found)): newer}), {})
    assert tiles.decode_tiles(*arguments) == newer
    assert tiles.prefill_tiles(64, 3, "bfloat16", "bfloat16") == prefilling
    tiles.tuned.cache_clear()


def test_the_search_ends_in_time():
    problem = attention_problem.make_problem(decode(SMALL, 2, 32), "bf16", 16, layers=1)
    done = tuning.explore(problem, CPU, fake_seconds, time.monotonic() - 1)
    assert done.best is None and done.notes == ["out of time; the rest was not tried"]


def test_candidates_are_measured_once_they_agree():
    """The whole search but for the kernel, which a CPU has none of: every candidate is noted."""
    problem = attention_problem.make_problem(decode(SMALL, 2, 32), "bf16", 16, layers=1)
    done = tuning.search(problem, CPU, 60)
    assert done.best is None and len(done.notes) == len(tuning.DECODE_BLOCKS)
    assert all("needs a GPU" in note for note in done.notes)


# -- the command ----------------------------------------------------------------------------------

TINY = "--shapes smollm2-135m --batches 1 --contexts 32 --chunk 8 --repeats 1 --no-facts"


def test_interpreted_kernels_are_reported(monkeypatch):
    monkeypatch.setattr(interpreted, "DTYPES", ("bf16",))
    found = list(interpreted.checks(("xla-online", "triton"), ("decode",)))
    assert [(each["path"], each["status"]) for each in found] == [("triton", "agrees")]
    lines = attention_report.check_lines(
        [*found, {**found[0], "reason": "why", "status": "failed"}]
    )
    assert lines[-2].startswith("  triton decode bf16: difference ")
    assert lines[-1] == "  triton decode bf16: failed: why"


def test_a_small_run(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path, chart = tmp_path / "out.json", tmp_path / "out.png"
    options = f"{TINY} --paths xla-gather,xla-online,cudnn-dense --json {path} --plot {chart}"
    assert attention.main(options.split()) == 0, capsys.readouterr().err
    result, out = json.loads(path.read_text()), capsys.readouterr().out
    assert len(result["cases"]) == 1 + 3
    for entry in result["cases"]:
        gather, online = (entry["paths"][name] for name in ("xla-gather", "xla-online"))
        for timed in (gather, online):
            assert timed["status"] == "timed" and timed["difference"] < 1e-2
            assert timed["min_s"] <= timed["median_s"] <= timed["max_s"]
            rate = entry["bytes"] / timed["median_s"]
            assert timed["bytes_per_second"] == pytest.approx(rate)
            copied = result["device"]["copy_bytes_per_second"]
            assert timed["share_of_copy"] == pytest.approx(rate / copied)
        assert entry["paths"]["cudnn-dense"]["status"] == "skipped"
    assert result["interpreted"] == []
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path) not in path.read_text()
    assert out.count("cudnn-dense: skipped: needs a GPU") == 1
    assert "dispatched one by one" in out and "xla-online" in out


def test_what_is_too_large_or_too_late_is_said(monkeypatch, capsys):
    monkeypatch.setattr(attention_trial, "_memory", lambda where: 1)
    monkeypatch.setattr(attention.interpreted, "checks", lambda paths, kinds: [])
    assert attention.main(f"{TINY} --kinds prefill".split()) == 0
    assert capsys.readouterr().out.count("with its copies; there are 0.0") == 3
    assert attention.main(f"{TINY} --kinds prefill --seconds -1".split()) == 0
    assert capsys.readouterr().out.count("not run: past --seconds -1") == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [("--tune", "--tune measures kernels on a GPU, and there is none"),
     ("--shapes gpt-2", "--shapes 'gpt-2' is unknown; supported: llama-3-8b"),
     ("--dtypes fp4", "--dtypes 'fp4' is unknown"), ("--batches 0", "--batches must be 1 and more"),
     ("--repeats 0", "--repeats must be at least 1"),
     ("--json MISSING/x.json", "there is no folder for MISSING")],
)  # fmt: skip
def test_mistakes_end_in_one_line(options, message, capsys):
    assert attention.main(options.split()) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {message}") and said.count("\n") == 1


def test_it_runs_where_pagedjax_cannot_be_imported():
    """On a machine with jax and numpy alone."""
    blocked = ("flax", "optax", "orbax", "transformers", "gguf", "safetensors", "tokenizers")
    code = f"""
import sys
sys.modules.update(dict.fromkeys({blocked}))
from bench.attention import command as attention
sys.exit(attention.main(["--tune"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == "error: --tune measures kernels on a GPU, and there is none\n"
