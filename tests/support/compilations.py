"""Context managers that record what JAX compiles and which programs an engine runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from pagedjax import Engine

COMPILED = "/jax/core/compile/backend_compile_duration"


@contextmanager
def jax_compilations() -> Iterator[list[str]]:
    """Names of all functions that JAX compiles within the block, including eager operations."""
    found: list[str] = []

    def listen(event: str, _: float, **details: Any) -> None:
        if event == COMPILED:
            found.append(str(details.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@contextmanager
def programs_run(engine: Engine) -> Iterator[set[tuple]]:
    """Keys of all programs that the engine runs within the block."""
    programs, keys = engine._runner._programs, set()
    lookup = programs._compile

    def recorded(key: tuple, *args: Any) -> Any:
        keys.add(key)
        return lookup(key, *args)

    programs._compile = recorded
    yield keys
    del programs._compile
