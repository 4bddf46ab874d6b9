"""BlockPool without sharing: each block is either free or in one block table."""

import random

import pytest

from pagedjax.schedule.blocks import BlockPool


def test_a_new_pool_is_free():
    pool = BlockPool(5, 4)
    assert (pool.num_blocks, pool.block_size, pool.num_free) == (5, 4, 5)


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)]
)
def test_blocks_for_tokens(tokens, blocks):
    assert BlockPool(5, 4).blocks_for(tokens) == blocks


@pytest.mark.parametrize(("count", "possible"), [(0, True), (4, True), (5, True), (6, False)])
def test_as_many_can_be_allocated_as_are_free(count, possible):
    assert BlockPool(5, 4).can_allocate(count) == possible


def test_all_blocks_can_be_taken_and_are_different():
    pool = BlockPool(5, 4)
    assert sorted(pool.allocate(2) + pool.allocate(3)) == [0, 1, 2, 3, 4]


def test_the_lowest_blocks_go_first():
    assert BlockPool(5, 4).allocate(3) == [0, 1, 2]


def test_an_empty_pool_allocates_zero_blocks():
    assert BlockPool(0, 4).allocate(0) == []


def test_an_allocation_beyond_the_pool_is_a_memory_error_with_both_numbers():
    pool = BlockPool(5, 4)
    pool.allocate(3)
    with pytest.raises(MemoryError, match="3 blocks wanted; 2 of 5 free, 0 cached"):
        pool.allocate(3)


def test_a_refused_allocation_takes_nothing():
    pool = BlockPool(5, 4)
    with pytest.raises(MemoryError):
        pool.allocate(6)
    assert pool.num_free == 5


def test_a_second_release_is_refused_by_number():
    pool = BlockPool(5, 4)
    taken = pool.allocate(3)
    pool.release(taken)
    with pytest.raises(ValueError, match="block 1 is released twice"):
        pool.release([1])


def test_a_block_that_was_never_taken_cannot_be_released():
    with pytest.raises(ValueError, match="block 4"):
        BlockPool(5, 4).release([4])


def test_a_block_named_twice_in_one_release_is_refused():
    pool = BlockPool(5, 4)
    block = pool.allocate(1)[0]
    with pytest.raises(ValueError, match=f"block {block}"):
        pool.release([block, block])


def test_a_released_block_can_be_taken_again():
    pool = BlockPool(2, 4)
    pool.release(pool.allocate(2)[:1])
    assert pool.allocate(1) == [0]


@pytest.mark.parametrize("tables", [[], [[0, 1]], [[0, 1, 2], [2]], [[0, 1, 3]]])
def test_check_finds_tables_that_do_not_match(tables):
    """A leaked block, a missing one, a shared one, and a wrong one."""
    pool = BlockPool(5, 4)
    pool.allocate(3)
    with pytest.raises(AssertionError):
        pool.check(tables)


def test_check_accepts_tables_that_match():
    pool = BlockPool(5, 4)
    pool.check([pool.allocate(2), pool.allocate(1)])


def operate(pool, rng, free, tables):
    """Apply one random operation to the pool and to its model: a set of free ids, and tables."""
    if tables and rng.random() < 0.5:
        table = tables.pop(rng.randrange(len(tables)))
        kept = rng.randrange(len(table) + 1)  # the table may be released in parts
        pool.release(table[kept:])
        free |= set(table[kept:])
        if kept:
            tables.append(table[:kept])
        return
    count = rng.randrange(8)
    if count > len(free):
        with pytest.raises(MemoryError):
            pool.allocate(count)
        return
    taken = pool.allocate(count)
    assert len(taken) == count and set(taken) <= free
    free -= set(taken)
    if taken:
        tables.append(taken)


@pytest.mark.parametrize("num_blocks", [1, 7, 30])
def test_random_operations_agree_with_a_set(num_blocks):
    pool, rng = BlockPool(num_blocks, 4), random.Random(num_blocks)
    free, tables = set(range(num_blocks)), []
    for _ in range(2000):
        operate(pool, rng, free, tables)
        assert pool.num_free == len(free)
        pool.check(tables)
