"""Contenders that are measured in turn, so that noise affects all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping


def take[Outcome](
    contenders: Mapping[str, Callable[[], Outcome]],
    repeats: int,
    describe: Callable[[Outcome], str],
) -> dict[str, list[Outcome]]:
    """Run all contenders in each repeat, and describe each outcome on stderr."""
    outcomes: dict[str, list[Outcome]] = {key: [] for key in contenders}
    for repeat in range(repeats):
        for key, run in contenders.items():
            done = run()
            outcomes[key].append(done)
            print(
                f"repeat {repeat + 1} of {repeats}: {key}: {describe(done)}",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    return outcomes
