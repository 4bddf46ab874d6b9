"""How many blocks a KV pool gets, from the options and the device's memory."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pagedjax import Engine, EngineConfig
from pagedjax.layers.kv_cache import block_bytes, choose_num_blocks
from tests.support.tiny_llama import tiny

GIB = 1 << 30


def no_temporaries() -> int:
    raise AssertionError("this size is known without compiling anything")


def gpu(**stats: int) -> Any:
    return SimpleNamespace(platform="gpu", memory_stats=lambda: stats)


CPU: Any = SimpleNamespace(platform="cpu", memory_stats=lambda: None)


@pytest.mark.parametrize(
    "others", [{}, {"largest_free_block_bytes": 5, "bytes_reserved": 7, "peak_bytes_in_use": 9}]
)
def test_a_pool_is_sized_from_the_devices_limit(others: dict[str, int]) -> None:
    """Utilization x limit - bytes in use - temporaries; other statistics have no effect."""
    device = gpu(bytes_limit=80 * GIB, bytes_in_use=16 * GIB, **others)

    def chosen(utilization: float, temporaries: int = 2 * GIB) -> int:
        config = EngineConfig(gpu_memory_utilization=utilization)
        return choose_num_blocks(config, GIB // 8, 4096, device, lambda: temporaries)

    assert chosen(0.9) == (72 - 16 - 2) * 8
    assert chosen(0.5) == (40 - 16 - 2) * 8
    assert chosen(1.0, temporaries=0) == 64 * 8
    assert chosen(0.9, temporaries=2 * GIB + 1) == 54 * 8 - 1


@pytest.mark.parametrize(
    ("slots", "max_model_len", "blocks"),
    [(8, 100, 8 * 7), (1, 16, 1), (64, 4096, 4 * 1024), (64, 1024, 4 * 1024), (63, 1024, 63 * 64)],
)
def test_a_pool_on_a_cpu_holds_every_slot_at_full_length_or_4_gib(
    slots: int, max_model_len: int, blocks: int
) -> None:
    """Blocks of 16 tokens and 1 MiB."""
    config = EngineConfig(max_num_seqs=slots)
    assert choose_num_blocks(config, 1 << 20, max_model_len, CPU, no_temporaries) == blocks


@pytest.mark.parametrize("device", [CPU, gpu(bytes_limit=GIB, bytes_in_use=0)])
def test_an_explicit_pool_size_is_used(device: Any) -> None:
    """Neither the device's limit nor the temporaries are read."""
    for options, blocks in (
        ({"num_blocks": 77}, 77), ({"kv_cache_bytes": 10_999}, 10),
        ({"num_blocks": 5, "kv_cache_bytes": 10_999}, 5),
    ):  # fmt: skip
        config = EngineConfig(**options)
        assert choose_num_blocks(config, 1000, 4096, device, no_temporaries) == blocks


@pytest.mark.parametrize(
    ("config", "device"),
    [(EngineConfig(), gpu(bytes_limit=16 * GIB, bytes_in_use=15 * GIB)),
     (EngineConfig(gpu_memory_utilization=0.01), gpu(bytes_limit=16 * GIB, bytes_in_use=0)),
     (EngineConfig(kv_cache_bytes=999), CPU)],
)  # fmt: skip
def test_a_device_without_room_for_a_pool_names_the_remedies(
    config: EngineConfig, device: Any
) -> None:
    """For example when the weights or another process occupy the memory."""
    message = "are left for the KV pool.*raise gpu_memory_utilization or kv_cache_bytes, or free"
    with pytest.raises(MemoryError, match=message):
        choose_num_blocks(config, GIB, 4096, device, lambda: GIB)


def test_the_engine_has_the_pool_that_was_chosen() -> None:
    """On this CPU, sized by `max_num_seqs` and `max_model_len`, or by `kv_cache_bytes`."""
    config, params = tiny("base")
    one = block_bytes(config, 16, "float32")
    options = EngineConfig(max_num_seqs=3, max_model_len=40, attention="xla")
    for changes, blocks in (({}, 9), ({"kv_cache_bytes": 5 * one + 1}, 5)):
        engine = Engine(config, params, dataclasses.replace(options, **changes))
        cache = engine._runner._state.cache
        assert engine.stats().num_blocks == cache.num_blocks == blocks
        assert sum(each.nbytes for each in jax.tree.leaves(cache)) == blocks * one
    assert cache.k.dtype == jnp.float32
