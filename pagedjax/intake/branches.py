"""Copies of a request (fork), and going back in one (rollback): the checks, and the copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagedjax.checks.values import check_seed, is_int, plain_list, plain_number
from pagedjax.intake.intake import Intake
from pagedjax.schedule.request import Request


def check_fork(
    new_request_ids: Sequence[str], seeds: Sequence[int] | None, is_in_use: Callable[[str], bool]
) -> list[int] | None:
    """Return the seeds of a fork's children; ValueError for used or repeated ids, or bad seeds."""
    if isinstance(new_request_ids, str):
        raise ValueError(f"new_request_ids={new_request_ids!r} must be a list of ids")
    taken = [each for each in new_request_ids if is_in_use(each)]
    if taken or len(set(new_request_ids)) != len(new_request_ids):
        raise ValueError(f"fork needs new, different ids; got {list(new_request_ids)}")
    if seeds is not None and len(seeds) != len(new_request_ids):
        raise ValueError(f"{len(seeds)} seeds for {len(new_request_ids)} children")
    return None if seeds is None else [check_seed(seed) for seed in plain_list(seeds)]


def check_rollback(num_tokens: int, most: int) -> int:
    """Return `num_tokens` as an int; ValueError unless it is from 0 to `most`."""
    number = plain_number(num_tokens)
    if not is_int(number) or not 0 <= number <= most:
        raise ValueError(
            f"num_tokens={num_tokens!r} must be an int from 0 to {most}, all there are"
        )
    return number


def children(
    intake: Intake, parent: Request, ids: Sequence[str], seeds: list[int] | None
) -> list[Request]:
    """Admitted copies of `parent`; child j has seeds[j], or without seeds a fresh one."""
    copies = []
    for index, child_id in enumerate(ids):
        arrival = intake.next_arrival()
        seed = intake.fresh_seed(arrival) if seeds is None else seeds[index]
        child = parent.copy(id=child_id, arrival=arrival, seed=seed)
        child.num_cached_tokens = parent.num_cached_tokens
        copies.append(child)
    return copies
