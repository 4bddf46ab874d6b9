"""The search for the fastest tiles, and the table that it writes."""

import json
import time

from bench.attention import problem as attention_problem
from bench.attention import tuning
from bench.attention.shapes import Case, decode
from pallas_kernels import tiles
from pallas_kernels.tiles import DecodeTiles, PrefillTiles
from tests.support.attention_cases import CPU, SMALL


def fake_seconds(chosen):
    """Large blocks are fast, splits cost a little, and 2 warps do not compile."""
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
    # A later run adds to the table, and replaces the entries that it measured again.
    newer = DecodeTiles(32, 2)
    tiles.save_table(name, tuning.merged(name, {next(iter(found)): newer}), {})
    assert tiles.decode_tiles(*arguments) == newer
    assert tiles.prefill_tiles(64, 3, "bfloat16", "bfloat16") == prefilling
    tiles.tuned.cache_clear()


def test_the_search_ends_in_time():
    problem = attention_problem.make_problem(decode(SMALL, 2, 32), "bf16", 16, layers=1)
    done = tuning.explore(problem, CPU, fake_seconds, time.monotonic() - 1)
    assert done.best is None and done.notes == ["out of time; the rest was not tried"]


def test_candidates_that_fail_are_noted():
    """The whole search on a CPU, where each candidate fails and leaves a note."""
    problem = attention_problem.make_problem(decode(SMALL, 2, 32), "bf16", 16, layers=1)
    done = tuning.search(problem, CPU, 60)
    assert done.best is None and len(done.notes) == len(tuning.DECODE_BLOCKS)
    assert all("needs a GPU" in note for note in done.notes)
