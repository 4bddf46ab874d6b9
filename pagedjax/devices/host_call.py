"""Entry of user calls to an engine: checked, one thread at a time, with the engine's JAX settings.

The engine compiles for explicit shapes, types and devices. JAX settings of the caller that would
change them (a context mesh, 64-bit types, a transfer guard, disabled jit) do not apply inside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, NoReturn, Protocol

import jax
from jax.extend.core import get_opaque_trace_state

from pagedjax.checks.turns import Turns

_AT_REST = get_opaque_trace_state(convention="nnx")  # outside any jit, grad, vmap or scan


@contextmanager
def own_settings() -> Iterator[None]:
    """Set the JAX configuration that the engine expects, for this thread."""
    with (
        jax.set_mesh(None),
        jax.enable_x64(False),
        jax.transfer_guard("allow"),
        jax.disable_jit(False),
    ):
        yield


def in_own_settings[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` within `own_settings`."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with own_settings():
            return function(*args, **kwargs)

    return run


def check_not_traced() -> None:
    """Raise RuntimeError inside a JAX transformation."""
    if get_opaque_trace_state(convention="nnx") != _AT_REST:
        raise RuntimeError(
            "an engine runs on the host and cannot be called inside jit, grad, vmap or scan; call "
            "it outside, or trace the pure functions of its step, such as "
            "pagedjax.step.forward.forward"
        )


class Caller:
    """Admits calls to an engine from the process that made it, one thread at a time."""

    def __init__(self) -> None:
        check_not_traced()
        self._process_id = os.getpid()
        self._turns = Turns()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the engine's lock and apply the engine's JAX settings.

        Raises RuntimeError inside a JAX transformation, and in a process that was forked after the
        engine was made: XLA's threads do not exist there, so the call would hang.
        """
        check_not_traced()
        if os.getpid() != self._process_id:
            raise RuntimeError(
                f"this engine was made in process {self._process_id}, but this is process "
                f"{os.getpid()}, forked from it; make the engine in the child, or start the child "
                "with the multiprocessing method 'spawn'"
            )
        with self._turns, own_settings():
            yield


class InProcess:
    """An object that stays in the process that made it: it is neither pickled nor copied."""

    caller: Caller

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"an {type(self).__name__} holds device arrays and compiled programs and cannot be "
            "pickled or copied; make one in each process from the same checkpoint"
        )


class HasCaller(Protocol):
    """An object with methods decorated by `host_call`."""

    caller: Caller


def host_call[T: HasCaller, **P, R](
    method: Callable[Concatenate[T, P], R],
) -> Callable[Concatenate[T, P], R]:
    """Decorate a method to run within its object's `Caller.turn`."""

    @wraps(method)
    def run(self: T, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.caller.turn():
            return method(self, *args, **kwargs)

    return run
