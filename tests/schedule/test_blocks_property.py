"""The block pool under random operations."""

from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagedjax.schedule.blocks import BlockPool
from tests.support.block_work import BLOCK_SIZE, EVENTS, NUM_BLOCKS, WORK, Driver

OPERATIONS = 200
EXAMPLES = 200
AT_LEAST = 20_000  # operations that had an effect, over all examples
SEEN: Counter[str] = Counter()


@settings(
    max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(st.binary(min_size=3 * OPERATIONS, max_size=3 * OPERATIONS))
def run_random_programs(program):
    driver = Driver(BlockPool(NUM_BLOCKS, BLOCK_SIZE))
    driver.run(program)
    SEEN.update(driver.seen)
    driver.pool.release([block for request in driver.live for block in request.table])
    driver.pool.clear()
    assert driver.pool.num_free == NUM_BLOCKS


def test_random_operations_keep_every_key_where_it_belongs():
    SEEN.clear()
    run_random_programs()
    assert sum(SEEN[each] for each in WORK) >= AT_LEAST
    assert all(SEEN[each] > 20 for each in WORK + EVENTS), SEEN
