"""The memory benchmark: its arithmetic, its accounting, its report, and a small run of it all."""

import json
import random
import sys
from functools import partial

import numpy as np
import pytest

from bench.memory import command as memory
from bench.memory import report as memory_report
from bench.memory import sharing
from bench.memory.contiguous import RESERVATIONS, Arena, ContiguousManager
from bench.memory.request_mix import ALPACA, MAX_SEQ_LEN, MIXES, SHAREGPT, UNIFORM, moments, stream
from bench.memory.steady_state import Live, PagedManager, Simulation, closed_form_waste
from pagedjax.schedule.accounting import account
from pagedjax.schedule.blocks import BlockPool

KIB = 1024
SHARES = ("stored", "reserved", "internal", "external", "idle")


@pytest.mark.parametrize(
    "model, kib", [("LLaMA-7B", 512), ("LLaMA-13B", 800), ("LLaMA-2-70B", 320)]
)
def test_bytes_of_a_token(model, kib):
    """2 x layers x kv heads x head dim x 2 bytes, and the 15.7K slots of arXiv 2309.06180."""
    assert memory.bytes_per_token(model) == kib * KIB
    assert memory.num_slots() == 12 * KIB**3 // (800 * KIB) == 15728


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: mix.name)
def test_mixes_have_the_means_they_name(mix):
    found = moments(mix)
    wanted = {UNIFORM: (516, 516), ALPACA: (19, 58), SHAREGPT: (161, 338)}[mix]
    assert (found.prompt_len, found.output_len) == pytest.approx(wanted, rel=0.01)
    prompt, output = mix.draw(np.random.default_rng(1), 10_000)
    assert min(prompt.min(), output.min()) >= 1 and (prompt + output).max() <= MAX_SEQ_LEN


def test_requests_are_the_same_for_the_same_seed():
    one, same, other = (stream(SHAREGPT, seed) for seed in (3, 3, 4))
    first = [next(one) for _ in range(2000)]
    assert first == [next(same) for _ in range(2000)] != [next(other) for _ in range(2000)]


def test_length_of_a_running_request():
    """Prompts of 3 and outputs of 1 or 3: lengths 3 in one step, and 3, 4, 5 in three."""

    class Mix:
        def draw(self, rng, count):
            return np.full(2, 3), np.array([1, 3])

    assert moments(Mix()).running_len == pytest.approx((3 + 3 + 4 + 5) / 4)


def test_an_arena_against_a_bitmap():
    """First fit, whole pieces, merged holes: the arena's holes are the runs of the bitmap."""
    arena, used, held, rng = Arena(50), [False] * 50, [], random.Random(0)
    for _ in range(2000):
        if held and rng.random() < 0.5:
            start, size = held.pop(rng.randrange(len(held)))
            arena.give(start, size)
            used[start : start + size] = [False] * size
        else:
            size = rng.randint(1, 12)
            fits = [at for at in range(51 - size) if not any(used[at : at + size])]
            start = arena.take(size)
            assert start == (fits[0] if fits else None)
            if fits:
                held.append((start, size))
                used[start : start + size] = [True] * size
        runs = "".join(".x"[each] for each in used).split("x")
        assert [size for _, size in arena.holes] == [len(run) for run in runs if run]
        assert arena.num_free == used.count(False)


def test_reservations():
    sizes = [[each.size(final) for final in (1, 2, 3, 512, 513, 2047)] for each in RESERVATIONS]
    assert sizes == [[2048] * 6, [1, 2, 4, 512, 1024, 2048], [1, 2, 3, 512, 513, 2047]]


def test_free_room_in_pieces_is_external_waste():
    """Of 20 slots, pieces of 6, 8 and 6 in exact reservations; the next request needs 9."""
    manager = ContiguousManager(20, RESERVATIONS[2])
    requests = [Live(2, 5, known=2), Live(4, 5, known=4), Live(2, 5, known=2)]
    assert all(manager.admit(each, True) for each in requests)
    manager.release(requests[0])
    assert not manager.admit(Live(3, 7), True) and not manager.is_fragmented(Live(3, 7))
    manager.release(requests[2])
    assert manager.arena.holes == [(0, 6), (14, 6)]
    assert not manager.admit(Live(3, 7), True) and manager.is_fragmented(Live(3, 7))


@pytest.mark.parametrize("reservation", RESERVATIONS, ids=lambda each: each.name)
def test_contiguous_shares_add_up_to_the_arena(reservation):
    manager = ContiguousManager(4096, reservation)
    simulation = Simulation(manager, stream(SHAREGPT, 0))
    found = simulation.run(100)
    assert sum(getattr(found, name) for name in SHARES) == pytest.approx(1)
    given = sum(manager.slots(each) for each in simulation.running)
    assert given + manager.arena.num_free == 4096
    assert found.utilization < 0.8 and found.preemptions == found.recomputed == 0
    assert (found.internal == 0) == (reservation is RESERVATIONS[2])


@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_paged_waste_is_the_closed_form(block_size):
    """Half a block a sequence, within 0.5 points of what the mix alone predicts."""
    manager = PagedManager(4096, block_size)
    simulation = Simulation(manager, stream(SHAREGPT, 0))
    found = simulation.run(300)
    predicted = closed_form_waste(moments(SHAREGPT).running_len, block_size)
    assert 1 - found.utilization == pytest.approx(predicted, abs=0.005)
    assert sum(getattr(found, name) for name in SHARES) == pytest.approx(1)
    assert found.external == 0 and found.preemptions > 0
    last = manager.account(simulation.running)
    assert last.physical_tokens == sum(each.stored for each in simulation.running)
    assert (last.tokens_saved, last.num_shared_blocks, last.blocks_saved) == (0, 0, 0)
    manager.blocks.check([each.place for each in simulation.running])


def test_who_was_preempted_comes_back_with_all_its_tokens():
    """Two requests of 4 + 8 in 4 blocks of 4: the newer one gives way and ends second."""
    simulation = Simulation(PagedManager(16, 4), iter([(4, 8), (4, 8), *[(16, 1)] * 9]))
    found = simulation.run(2)
    assert simulation.preemptions == 1
    assert found.recomputed == pytest.approx(8 / (11 + 8 + 11))


def test_accounting_counts_each_block_once():
    """Two sequences of 6 and 7 tokens that share a full block and a partly filled one."""
    blocks = BlockPool(8, 4)
    table = blocks.allocate(2)
    blocks.share(table)
    found = account(blocks, [(table, 6), (table, 7), (blocks.allocate(1), 0)])
    assert (found.num_free_blocks, found.num_cached_blocks, found.num_referenced_blocks) == (
        5,
        0,
        3,
    )
    assert (found.num_shared_blocks, found.num_table_blocks, found.blocks_saved) == (2, 5, 2)
    assert (found.logical_tokens, found.physical_tokens, found.tokens_saved) == (13, 7, 6)
    assert found.kv_utilization == 7 / 12
    assert account(BlockPool(3, 4), []).kv_utilization == 0


def test_samples_copy_the_partly_filled_block_and_no_other():
    """A prompt of 6 in blocks of 4: the last writer keeps the original."""
    blocks = BlockPool(16, 4)
    family = sharing.Family.start(blocks, 6, 3)
    assert (family.account().num_referenced_blocks, family.account().tokens_saved) == (2, 12)
    family.grow()
    assert family.copies == 2
    assert (family.account().num_referenced_blocks, family.account().tokens_saved) == (4, 8)
    family.end()
    blocks.check()


def test_beams_fork_and_end():
    blocks = BlockPool(16, 4)
    family = sharing.Family.start(blocks, 4, 3)
    for parents in ([0, 1, 2], [0, 0, 2], [2, 2, 2]):
        family.survive(parents)
        family.grow()
        blocks.check(family.tables)
    assert len({tuple(table) for table in family.tables}) == 3
    family.end()
    assert blocks.num_free == 16


@pytest.mark.parametrize("sure", [0.0, 0.9])
def test_survivors_start_from_the_first_beam(sure):
    parents = list(sharing.survivors(np.random.default_rng(0), 4, 50, sure))
    assert len(parents) == 50 and parents[0] == [0, 0, 0, 0]
    replaced = sum(sorted(each) != [0, 1, 2, 3] for each in parents)
    assert (replaced > 30) if sure == 0 else (replaced < 15)


@pytest.mark.parametrize("mix", [ALPACA, SHAREGPT], ids=lambda mix: mix.name)
def test_parallel_savings_are_the_closed_form_for_the_same_requests(mix):
    found = sharing.measure(mix, 4, 16, 8_000, 0, sharing.parallel)
    predicted = sharing.closed_form_parallel(found.lengths, 4, 16)
    assert found.share == pytest.approx(predicted, abs=0.01)
    more = sharing.measure(mix, 4, 16, 8_000, 0, partial(sharing.survivors, sure=0.8))
    assert found.share < more.share < 3 / 4


def test_a_common_prompt_is_stored_once():
    """62 full blocks of 16 in 1,000 tokens, saved by 9 of 10."""
    prompts, outputs = sharing.common_prompt(ALPACA, 10, 1000, 16, 0)
    for found in (prompts, outputs):
        assert found.table_blocks - found.blocks == found.mean_blocks_saved == 9 * 62
        assert found.tokens_saved == 9 * 62 * 16
    assert prompts.share > outputs.share


def run(options, capsys):
    status = memory.main(options.split())
    printed = capsys.readouterr()
    assert status == 0, printed.err
    return printed.out


def test_a_small_run(tmp_path, capsys):
    """End to end: the same JSON for the same seed, all tables, and the chart."""
    pytest.importorskip("matplotlib")
    path, chart = tmp_path / "out.json", tmp_path / "chart.png"
    out = run(f"--requests 20 --seed 5 --json {path} --plot {chart}", capsys)
    result = json.loads(path.read_text())
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert len(result["steady_state"]) == 3 * (len(RESERVATIONS) + 3)
    for each in result["steady_state"]:
        assert sum(each[name] for name in SHARES) == pytest.approx(1)
        assert (each["block_size"] is None) == ("closed_form_waste" not in each)
    assert len(result["sharing"]) == 2 * (3 + 3 * 3) and len(result["common_prompt"]) == 4
    for each in result["sharing"] + result["common_prompt"]:
        sizes = each["saved_bytes"]
        assert sizes["LLaMA-7B"] == pytest.approx(each["saved_blocks"] * 16 * 512 * KIB, abs=1)
        assert sizes["LLaMA-13B"] / sizes["LLaMA-2-70B"] == pytest.approx(2.5)
    assert str(tmp_path) not in path.read_text()
    for text in ("reserve 2,048", "paged, blocks of 16", "6-10 %", "37-66 %", "points: "):
        assert text in out
    run(f"--requests 20 --seed 5 --json {path}", capsys)
    again = json.loads(path.read_text())
    assert {**again, "header": 0} == {**result, "header": 0}


def test_a_table_is_aligned():
    assert memory_report.table(("a", "bb"), [("ccc", "1"), ("d", "222")]) == [
        "a     bb", "---  ---", "ccc    1", "d    222",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "options, message",
    [
        ("--requests 9", "error: --requests must be at least 10"),
        ("--seed -1", "error: --seed must not be negative"),
        ("--plot MISSING/x.png", "error: there is no folder for MISSING"),
    ],
)
def test_mistakes_end_in_one_line(options, message, capsys):
    assert memory.main(options.split()) == 1
    said = capsys.readouterr().err
    assert said.startswith(message) and said.count("\n") == 1


def test_no_matplotlib_is_one_clear_error(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert memory.main(["--plot", "chart.png"]) == 1
    assert capsys.readouterr().err.startswith("error: a plot needs matplotlib")
