"""Savings by sharing blocks: samples, beams, and a common prompt."""

from functools import partial

import numpy as np
import pytest

from bench.memory import sharing
from bench.memory.request_mix import ALPACA, SHAREGPT
from pagedjax.schedule.accounting import account
from pagedjax.schedule.blocks import BlockPool


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
    """A prompt of 6 tokens in blocks of 4; the last sequence to write keeps the original block."""
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
    """1,000 tokens have 62 full blocks of 16, which 9 of 10 requests save."""
    prompts, outputs = sharing.common_prompt(ALPACA, 10, 1000, 16, 0)
    for found in (prompts, outputs):
        assert found.table_blocks - found.blocks == found.mean_blocks_saved == 9 * 62
        assert found.tokens_saved == 9 * 62 * 16
    assert prompts.share > outputs.share
