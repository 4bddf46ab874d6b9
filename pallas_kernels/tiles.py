"""Tile sizes of the kernels: static, frozen, chosen from the shapes and the device.

Tiles affect speed and rounding, never semantics. They are read from a table that
`python -m bench.attention --tune` measured on the device, if `tuned/` has one; otherwise the
choice is based on the registers and spills that the compiler reports for the shapes in
`tests/aot_process.py`, and on arithmetic.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

TUNED = Path(__file__).parent / "tuned"
PROGRAMS_PER_CORE = 2  # minimum; with fewer, SMs idle while the last programs run
MIN_SPLIT_TOKENS = 256  # a shorter split costs more in partial results than it gains
MAX_SPLITS = 64
# XLA's heuristic for split-K products: it splits a product, and sums the parts in a separate
# launch, if its tiles of this size number fewer than TILES_PER_CORE per SM.
PRODUCT_TILE = (64, 128)
TILES_PER_CORE = 1.25
MIN_SPLIT_INPUTS, INPUTS_ALIGNED = 512, 64


@dataclass(frozen=True)
class Device:
    """The properties of a GPU that determine the tiles."""

    name: str
    cores: int  # streaming multiprocessors
    capability: tuple[int, int]


H200 = Device("NVIDIA H200", 132, (9, 0))


def device_of(device: jax.Device) -> Device:
    """The description of an attached or described NVIDIA GPU; for other devices, an H200's."""
    capability = compute_capability(device)
    return Device(device.device_kind, device.core_count, capability) if capability else H200


def compute_capability(device: jax.Device) -> tuple[int, int] | None:
    """The compute capability of an NVIDIA GPU, such as (9, 0); None for all other devices."""
    if device.platform not in ("gpu", "cuda"):
        return None
    found = re.fullmatch(r"(\d+)\.(\d+)", str(getattr(device, "compute_capability", "")))
    return (int(found[1]), int(found[2])) if found else None


@dataclass(frozen=True)
class DecodeTiles:
    """Decode tiles: one program loops over a split of a row's keys, `block_tokens` at a time."""

    block_tokens: int = 64
    splits: int = 1  # per row; each row's own context is divided evenly
    fixed_split_tokens: int | None = None  # instead, split at absolute multiples of this
    num_warps: int = 4
    num_stages: int = 3

    def __post_init__(self) -> None:
        _power_of_two("block_tokens", self.block_tokens, 16, 256)
        if self.splits < 1:
            raise ValueError(f"splits={self.splits}; supported: 1 or more")
        fixed = self.fixed_split_tokens
        if fixed is not None and (fixed < 1 or fixed % self.block_tokens):
            raise ValueError(
                f"fixed_split_tokens={fixed}; supported: multiples of "
                f"block_tokens={self.block_tokens}"
            )


@dataclass(frozen=True)
class PrefillTiles:
    """Prefill tiles: one program attends with `rows` (query, head) pairs of one kv head."""

    rows: int = 128
    block_tokens: int = 64
    num_warps: int = 8
    num_stages: int = 2

    def __post_init__(self) -> None:
        _power_of_two("rows", self.rows, 16, 256)
        _power_of_two("block_tokens", self.block_tokens, 16, 256)

    def queries(self, group: int) -> int:
        """Queries per tile; each takes G rows, one per head."""
        return self.rows // group


def decode_tiles(
    rows: int,  # B
    kv_heads: int,  # K of one device
    width: int,  # D
    context: int,  # most tokens of a row, P * T
    dtype: Any,  # of the queries
    pool_dtype: Any,
    device: Device = H200,
) -> DecodeTiles:
    """Choose tiles that fit the registers and splits that fill the device's SMs."""
    key = decode_key(rows, kv_heads, width, context, dtype, pool_dtype)
    if key in tuned(device.name):
        return DecodeTiles(**tuned(device.name)[key])
    wide = jnp.dtype(dtype).itemsize == 4
    hopper = device.capability >= (9, 0)
    splits = choose_splits(rows * kv_heads, context, device.cores)
    if wide:
        block = 16 if width > 128 else 32
        stages = 3 if width > 64 and hopper else 2
        warps = 8 if width > 128 and hopper else 4
        return DecodeTiles(block_tokens=block, splits=splits, num_warps=warps, num_stages=stages)
    stages = 2 if width > 128 else 3
    if not _converted(pool_dtype):
        return DecodeTiles(32 if width > 128 else 64, splits, num_stages=stages)
    if width <= 64:
        return DecodeTiles(block_tokens=64, splits=splits, num_stages=2 if hopper else 3)
    if hopper:
        return DecodeTiles(block_tokens=32, splits=splits, num_warps=8, num_stages=stages)
    block, warps = (32, 4) if width > 128 else (64, 8)
    return DecodeTiles(block_tokens=block, splits=splits, num_warps=warps, num_stages=2)


def choose_splits(programs: int, context: int, cores: int) -> int:
    """The smallest power of two that gives every SM `PROGRAMS_PER_CORE` programs.

    So B * K * splits is two to four programs per SM, or more where B * K alone is more. Bounded so
    that a split of the longest context has at least `MIN_SPLIT_TOKENS`.

    programs: B * K.
    """
    splits = 1
    while (
        programs * splits < PROGRAMS_PER_CORE * cores
        and splits < MAX_SPLITS
        and context // (2 * splits) >= MIN_SPLIT_TOKENS
    ):
        splits *= 2
    return splits


def product_splits(
    rows: int,
    outputs: int,
    inputs: int,
    cores: int,
) -> int:
    """The number of split-K parts of a product, chosen so that few rows still fill the SMs."""
    tiles = -(-rows // PRODUCT_TILE[0]) * -(-outputs // PRODUCT_TILE[1])
    splits = 1
    while (
        splits * tiles < TILES_PER_CORE * cores
        and inputs // (2 * splits) >= MIN_SPLIT_INPUTS
        and inputs % (2 * splits * INPUTS_ALIGNED) == 0
    ):
        splits *= 2
    return splits


def prefill_tiles(
    width: int, group: int, dtype: Any, pool_dtype: Any, device: Device = H200
) -> PrefillTiles:
    """Choose 64 or 128 rows for tensor cores, and smaller tiles where registers are scarce.

    Before compute capability 9.0 products read their operands from registers (mma), not from
    shared memory (wgmma), which leaves fewer registers for the tile.
    """
    key = prefill_key(width, group, dtype, pool_dtype)
    if key in tuned(device.name):
        return PrefillTiles(**tuned(device.name)[key])
    older = device.capability < (9, 0)
    if jnp.dtype(dtype).itemsize == 4:
        few = older and (width <= 64 or 96 < width <= 128)
        stages = 3 if (width <= 96 if older else width > 128) else 2
        return PrefillTiles(rows=32, block_tokens=16, num_warps=4 if few else 8, num_stages=stages)
    if width > 128:
        block = 16 if _converted(pool_dtype) and not older else 32
        return PrefillTiles(rows=64, block_tokens=block, num_warps=8)
    if older:
        if width <= 64:
            return PrefillTiles(rows=64, block_tokens=64, num_warps=4)
        many = _converted(pool_dtype) or (group >= 8 and width > 96)
        return PrefillTiles(rows=64, block_tokens=32, num_warps=8 if many else 4)
    return PrefillTiles()


def _converted(pool_dtype: Any) -> bool:
    """Whether the pool has a one-byte format, whose conversion needs additional registers."""
    return jnp.dtype(pool_dtype).itemsize == 1


def decode_key(
    rows: int, kv_heads: int, width: int, context: int, dtype: Any, pool_dtype: Any
) -> str:
    """The key of a tuned decode entry; programs and context are rounded up to powers of two."""
    programs, context = (1 << (value - 1).bit_length() for value in (rows * kv_heads, context))
    names = f"{jnp.dtype(dtype).name} {jnp.dtype(pool_dtype).name}"
    return f"decode D={width} programs={programs} context={context} {names}"


def prefill_key(width: int, group: int, dtype: Any, pool_dtype: Any) -> str:
    """The key of a tuned prefill entry."""
    return f"prefill D={width} G={group} {jnp.dtype(dtype).name} {jnp.dtype(pool_dtype).name}"


@cache
def tuned(device_name: str) -> dict[str, dict[str, Any]]:
    """The tuned table of a device, {key: fields of the tiles}; empty if there is none."""
    path = table_path(device_name)
    return json.loads(path.read_text("utf-8"))["tiles"] if path.exists() else {}


def save_table(
    device_name: str, tiles: dict[str, DecodeTiles | PrefillTiles], header: dict[str, Any]
) -> Path:
    """Write the table of a device with the provenance in `header`; return its path."""
    path = table_path(device_name)
    path.parent.mkdir(exist_ok=True)
    entries = {key: asdict(each) for key, each in sorted(tiles.items())}
    path.write_text(json.dumps({"header": header, "tiles": entries}, indent=1) + "\n", "utf-8")
    tuned.cache_clear()
    return path


def table_path(device_name: str) -> Path:
    """The path of a device's table, whether or not it exists."""
    return TUNED / (re.sub(r"\W+", "_", device_name.strip()).lower() + ".json")


def _power_of_two(name: str, value: int, least: int, most: int) -> None:
    if value < least or value > most or value & (value - 1):
        raise ValueError(f"{name}={value}; supported: powers of two from {least} to {most}")
