"""Penalties, biases and masks compared with numpy; rows without them stay bit-identical."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pagedjax.sample.penalties import (
    CHUNK,
    FORBIDDEN,
    NOT_ALLOWED,
    Adjustments,
    Tables,
    adjust,
    token_counts,
)
from tests.support.numpy_filters import penalized
from tests.support.sampling_rows import sampling, tied_logits

adjust = jax.jit(adjust, static_argnames="processor")
GARBAGE = np.array([-1, -(2**31), 2**31 - 1, 50_000, 0, 1])


def histories(rng, tokens, room):
    """One slot of length `room` per list of tokens, padded with garbage."""
    history = rng.choice(GARBAGE, (len(tokens), room)).astype(np.int32)
    for row, known in zip(history, tokens, strict=True):
        row[: len(known)] = known
    return history


def run(
    logits, prompts, outputs, *, edits=None, processor=None, order=None, room=40, repetition=1.0,
    presence=0.0, frequency=0.0,
):  # fmt: skip
    """Run `adjust` on one row of logits per prompt; row r has slot order[r]."""
    logits = np.asarray(logits, np.float32)
    rows, vocab = logits.shape
    order = np.arange(rows) if order is None else order
    at = np.argsort(order)
    tokens = [[*prompts[row], *outputs[row]] for row in at]
    table = np.full(logits.shape, np.nan, np.float32)
    if edits is not None:
        table[order] = edits

    def filled(value, dtype):
        return jnp.asarray(np.broadcast_to(np.asarray(value, dtype), rows))

    arrays = sampling(rows).replace(
        slots=jnp.asarray(order, jnp.int32),
        num_prompt=jnp.asarray([len(prompt) for prompt in prompts], jnp.int32),
    )
    adjustments = Adjustments(
        repetition=filled(repetition, np.float32),
        presence=filled(presence, np.float32),
        frequency=filled(frequency, np.float32),
        edited=filled(edits is not None, bool)
        & jnp.asarray(np.isfinite(table[order]).any(-1) | (table[order] == -np.inf).any(-1)),
        logprobs=filled(False, bool),
    )
    history = histories(np.random.default_rng(0), tokens, room)
    tables = Tables(history=jnp.asarray(history), edits=jnp.asarray(table))
    lengths = [len(p) + len(o) for p, o in zip(prompts, outputs, strict=True)]
    return np.asarray(
        adjust(
            jnp.asarray(logits), arrays, adjustments, tables, jnp.asarray(lengths, jnp.int32),
            processor=processor,
        )
    )  # fmt: skip


def random_rows(rng, rows, vocab, longest=20):
    """Logits with ties and -inf, and prompts and outputs of few distinct tokens."""
    lists = [
        [rng.integers(0, min(vocab, 9), rng.integers(least, longest)).tolist() for _ in range(rows)]
        for least in (1, 0)
    ]
    return tied_logits(rng, rows, vocab), *lists


@pytest.mark.parametrize("kind", ["repetition", "presence", "frequency", "all"])
def test_penalties_are_those_of_numpy(kind):
    rng = np.random.default_rng(1)
    logits, prompts, outputs = random_rows(rng, 1000, 30)
    logits[::7] = 1.5  # all equal
    params = {
        "repetition": rng.choice([1, 0.5, 1.3, 2], 1000),
        "presence": rng.choice([0, -1, 0.7], 1000),
        "frequency": rng.choice([0, -0.5, 0.3], 1000),
    }
    params = {name: values for name, values in params.items() if kind in (name, "all")}
    found = run(logits, prompts, outputs, order=rng.permutation(1000), **params)
    wanted = [
        penalized(logits[row], prompts[row], outputs[row], **{n: v[row] for n, v in params.items()})
        for row in range(1000)
    ]
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_edits_are_added_to_the_logits():
    rng = np.random.default_rng(2)
    logits, prompts, outputs = random_rows(rng, 1000, 30)
    edits = rng.choice([0, 2.5, -100, -np.inf], (1000, 30)).astype(np.float32)
    edits[np.arange(1000), logits.argmax(axis=-1)] = 1
    edits[::3] = np.nan  # rows without an entry
    found = run(logits, prompts, outputs, edits=edits, order=rng.permutation(1000))
    wanted = logits + np.where(np.isnan(edits), 0, edits)
    np.testing.assert_array_equal(found, wanted)


def test_rows_without_options_stay_bit_identical():
    """Checked beside rows with every option; all slots are padded with garbage."""
    rng = np.random.default_rng(3)
    logits, prompts, outputs = random_rows(rng, 60, 30)
    logits[logits == 0] = -0.0
    neutral = np.arange(60) % 2 == 0
    edits = np.full((60, 30), np.nan, np.float32)
    edits[~neutral] = -np.inf
    edits[~neutral, 4] = 3
    found = run(
        logits, prompts, outputs, edits=edits, repetition=np.where(neutral, 1, 2),
        presence=np.where(neutral, 0, 1), frequency=np.where(neutral, 0, 1),
    )  # fmt: skip
    assert found[neutral].tobytes() == logits[neutral].tobytes()
    assert not np.isnan(found).any()
    assert run(logits, prompts, outputs).tobytes() == logits.tobytes()


# -- by value -----------------------------------------------------------------------------------


def test_repetition_counts_an_id_once():
    """After tokens 0, 0, 0, 1; positive logits are divided, negative ones multiplied."""
    found = run([[2, -2, 0.5]], [[0, 0]], [[0, 1]], repetition=2)
    assert found.tolist() == [[1, -4, 0.5]]


@pytest.mark.parametrize(("params", "at_7"), [({"frequency": 1.0}, 3), ({"repetition": 2.0}, 1.5),
                                              ({"presence": 1.0}, 3)])  # fmt: skip
def test_only_repetition_counts_the_prompt(params, at_7):
    """Prompt [7, 7, 7]."""
    logits = np.zeros((1, 8))
    logits[0, 7] = 3
    assert run(logits, [[7, 7, 7]], [[]], **params).tolist() == [[0] * 7 + [at_7]]


def test_frequency_counts_and_presence_does_not():
    """Output [4, 4] subtracts 2 x frequency + presence."""
    found = run([[0, 0, 0, 0, 5]], [[1]], [[4, 4]], frequency=0.5, presence=0.25)
    assert found.tolist() == [[0, 0, 0, 0, 5 - 2 * 0.5 - 0.25]]


def test_rows_of_different_lengths_are_penalised_as_alone():
    """Neither padding nor tokens of other rows are counted."""
    logits = np.random.default_rng(4).normal(0, 1, (2, 10)).astype(np.float32)
    prompts, outputs = [[1], [5, 6, 7]], [[2, 3], [5, 5, 0, 1, 2, 3]]
    params = {"repetition": 1.5, "frequency": 0.5, "presence": 0.25}
    together = run(logits, prompts, outputs, **params)
    for row in range(2):
        alone = run(logits[row : row + 1], prompts[row : row + 1], outputs[row : row + 1], **params)
        np.testing.assert_array_equal(together[row], alone[0])


def test_the_order_is_penalty_bias_processor_mask():
    """2 / 2 + 1 = 2, doubled to 4; the processor cannot re-enable a forbidden token."""
    edits = np.array([[1, 0, -np.inf]], np.float32)
    found = run([[2, 1, 9]], [[0]], [[]], repetition=2, edits=edits, processor=lambda x: x * 2)
    assert found.tolist() == [[4, 2, -np.inf]]


def test_a_processor_may_return_another_dtype():
    found = run([[1, 2]], [[0]], [[]], processor=lambda logits: logits.astype(jnp.bfloat16))
    assert found.dtype == np.float32 and found.tolist() == [[1, 2]]


@pytest.mark.parametrize("logits", [[1, 2, 3], [-np.inf, 2, -np.inf]])
def test_a_row_that_forbids_every_token_is_left_unchanged(logits):
    edits = np.array([[-np.inf, -np.inf, 0 if logits[1] == 2 and logits[0] < 0 else -np.inf]])
    found = run([logits, [1, 2, 3]], [[0]] * 2, [[]] * 2,
                edits=np.vstack([edits, [[0, -np.inf, 0]]]))  # fmt: skip
    assert found.tolist() == [logits, [1, -np.inf, 3]]


@pytest.mark.parametrize("room", [CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK - 5])
def test_counts_over_several_chunks(room):
    rng = np.random.default_rng(room)
    history = rng.integers(0, 50, (4, room)).astype(np.int32)
    starts, ends = rng.integers(0, room // 2, 4), rng.integers(room // 2, room + 1, 4)
    slots = np.array([2, 0, 3, 1])
    history[slots[0], ends[0] :] = -3
    found = token_counts(*map(jnp.asarray, (history, slots, starts, ends)), 50)
    for row, slot in enumerate(slots):
        wanted = np.bincount(history[slot, starts[row] : ends[row]], minlength=50)
        np.testing.assert_array_equal(found[row], wanted)


def test_padding_rows_do_not_affect_other_rows():
    """The slot of a padding row is M, which is out of range."""
    found = run([[2, -2, 0.5]], [[0, 0]], [[0, 1]], repetition=2)
    arrays = sampling(2).replace(slots=jnp.asarray([0, 1], jnp.int32))
    neutral = jnp.asarray([0, 0], jnp.float32)
    adjustments = Adjustments(
        jnp.asarray([2, 1], jnp.float32), neutral, neutral, neutral > 0, neutral > 0
    )
    tables = Tables(jnp.asarray([[0, 0, 0, 1, -1]], jnp.int32), jnp.full((1, 3), jnp.nan))
    logits = jnp.asarray([[2, -2, 0.5], [1, 2, 3]], jnp.float32)
    both = adjust(logits, arrays, adjustments, tables, jnp.asarray([4, 4], jnp.int32))
    np.testing.assert_array_equal(both, [found[0], [1, 2, 3]])


def test_forbidden_tokens_rank_before_tokens_that_are_not_allowed():
    """If bad words forbid every allowed token, one of these is still chosen."""
    edits = np.zeros((3, 6), np.float32)
    edits[0] = [FORBIDDEN, FORBIDDEN, *[NOT_ALLOWED] * 4]
    edits[1] = [FORBIDDEN, 0, *[NOT_ALLOWED] * 4]
    edits[2] = [FORBIDDEN, *[0] * 5]
    out = run(np.zeros((3, 6)), [[0]] * 3, [[]] * 3, edits=edits)
    assert (out > -np.inf).tolist() == [
        [True, True, False, False, False, False],
        [False, True, False, False, False, False],
        [False, True, True, True, True, True],
    ]
