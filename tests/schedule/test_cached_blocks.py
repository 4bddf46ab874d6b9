"""Cached blocks: which prefixes are found, and which blocks are evicted first."""

import pytest

from pagedjax.schedule.blocks import BlockPool


def cache(pool, namespace, tokens):
    """Compute and finish a request, which leaves its full blocks cached; its block table."""
    size = pool.block_size
    table, parent = pool.allocate(pool.blocks_for(len(tokens))), None
    for index in range(len(tokens) // size):
        key = tokens[index * size : (index + 1) * size]
        parent = pool.enter(namespace, parent, key, table[index])
    pool.release(table)
    return table


def hits(pool, namespace, tokens):
    return [node.block for node in pool.match(namespace, tokens)]


@pytest.mark.parametrize("evicted", [0, 1, 2, 3])
def test_a_chain_loses_its_leaves_first(evicted):
    """Eviction removes blocks from the end of a chain of three."""
    pool = BlockPool(3, 2)
    table = cache(pool, "", [1, 2, 3, 4, 5, 6])
    pool.release(pool.allocate(evicted))
    assert hits(pool, "", [1, 2, 3, 4, 5, 6]) == table[: 3 - evicted]
    pool.check()


def test_leaves_go_before_parents_when_a_prefix_was_used_again():
    """The less recently used branch is evicted first, from its end; the shared prefix goes last."""
    pool = BlockPool(5, 2)
    first = cache(pool, "", [1, 1, 2, 2, 3, 3])
    nodes = pool.match("", [1, 1])
    pool.share([nodes[0].block])
    branch = pool.allocate(1)
    pool.enter("", nodes[0], [4, 4], branch[0])
    pool.release([first[0], *branch])
    order = []
    while pool.num_cached:
        found = [*hits(pool, "", [1, 1, 2, 2, 3, 3]), *hits(pool, "", [1, 1, 4, 4])]
        taken = pool.allocate(pool.num_free + 1)
        left = [*hits(pool, "", [1, 1, 2, 2, 3, 3]), *hits(pool, "", [1, 1, 4, 4])]
        order += sorted(set(found) - set(left))
        pool.check([taken])
        pool.release(taken)
    assert order == [first[2], first[1], branch[0], first[0]]


def test_an_equal_second_block_is_not_a_hit():
    pool = BlockPool(8, 2)
    cache(pool, "", [1, 2, 7, 8])
    other = cache(pool, "", [3, 4, 7, 8])
    assert hits(pool, "", [3, 4, 7, 8]) == other
    assert hits(pool, "", [5, 6, 7, 8]) == hits(pool, "", [7, 8]) == []


def test_namespaces_are_separate():
    """A salt and an adapter of the same name are different namespaces."""
    pool = BlockPool(8, 2)
    salted, adapted = ("salt", "k"), ("adapter", "k")
    table = cache(pool, salted, [1, 2, 3, 4])
    assert hits(pool, salted, [1, 2, 3, 4]) == table
    assert hits(pool, adapted, [1, 2, 3, 4]) == hits(pool, "k", [1, 2]) == []


def test_blocks_entered_before_new_weights_are_never_found():
    pool = BlockPool(4, 2)
    table = pool.allocate(2)
    old = pool.enter("", None, [1, 2], table[0])
    pool.clear()
    assert pool.enter("", old, [3, 4], table[1]) is old, "a block was entered below a dead node"
    assert hits(pool, "", [1, 2, 3, 4]) == []
    pool.check([table])
    pool.release(table)
    assert pool.num_free == 4


def test_a_double_release_raises_and_leaves_the_cache_alone():
    pool = BlockPool(4, 2)
    table = cache(pool, "", [1, 2, 3, 4])
    with pytest.raises(ValueError, match="twice"):
        pool.release(table)
    assert hits(pool, "", [1, 2, 3, 4]) == table
    pool.check()
