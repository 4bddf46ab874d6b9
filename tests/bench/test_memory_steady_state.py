"""Request mixes, and contiguous and paged memory under a queue of them."""

import random

import numpy as np
import pytest

from bench.memory.contiguous import RESERVATIONS, Arena, ContiguousManager
from bench.memory.request_mix import ALPACA, MAX_SEQ_LEN, MIXES, SHAREGPT, UNIFORM, moments, stream
from bench.memory.steady_state import Live, PagedManager, Simulation, closed_form_waste

SHARES = ("stored", "reserved", "internal", "external", "idle")


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
    """Prompts of 3, outputs of 1 or 3: length 3 for one step, and 3, 4, 5 for one step each."""

    class Mix:
        def draw(self, rng, count):
            return np.full(2, 3), np.array([1, 3])

    assert moments(Mix()).running_len == pytest.approx((3 + 3 + 4 + 5) / 4)


def test_an_arena_against_a_bitmap():
    """Allocation is first fit, and the arena's holes are the runs of free bits."""
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
    """Exact reservations of 6, 8 and 6 in 20 slots; the next request needs 9."""
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
    """Half a block per sequence, within 0.5 percentage points of the closed form."""
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


def test_a_preempted_request_is_recomputed_with_all_its_tokens():
    """Two requests of 4 + 8 in 4 blocks of 4: the newer is preempted and ends second."""
    simulation = Simulation(PagedManager(16, 4), iter([(4, 8), (4, 8), *[(16, 1)] * 9]))
    found = simulation.run(2)
    assert simulation.preemptions == 1
    assert found.recomputed == pytest.approx(8 / (11 + 8 + 11))
