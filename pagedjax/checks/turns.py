"""A lock that is acquired in the order of requests."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType


class Turns:
    """A reentrant lock with first-come, first-served order.

    With `threading.RLock`, a thread that releases and reacquires the lock overtakes waiting
    threads, so a thread that steps an engine in a loop would block all others until it is done.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._guard:
            if self._owner == me or self._owner is None:
                self._owner = me
                self._depth += 1
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            turn.acquire()  # released by the thread that hands the lock over
        except BaseException:  # such as a KeyboardInterrupt
            self._give_up(turn)
            raise
        self._owner, self._depth = me, 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._guard:
            self._depth -= 1
            if not self._depth:
                self._hand_over()

    def _hand_over(self) -> None:
        """Wake the first waiting thread; until it runs, the lock counts as owned."""
        if self._waiting:
            self._owner = -1  # not a thread's id
            self._waiting.popleft().release()
        else:
            self._owner = None

    def _give_up(self, turn: threading.Lock) -> None:
        """Leave the queue; pass the lock on if it has been handed over in the meantime."""
        with self._guard:
            if turn in self._waiting:
                self._waiting.remove(turn)
            else:
                self._hand_over()
