"""The attention implementation chosen for an option, device, block size and pool dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from pagedjax.layers.attention import resolve


@dataclass(frozen=True)
class Device:
    platform: str
    device_kind: str
    compute_capability: str = ""


CPU = Device("cpu", "cpu")
A100, H200 = Device("gpu", "NVIDIA A100", "8.0"), Device("cuda", "NVIDIA H200", "9.0")
V100, MI300 = Device("gpu", "Tesla V100", "7.0"), Device("gpu", "AMD Instinct", "gfx942")
B200 = Device("gpu", "NVIDIA B200", "10.0")


@pytest.mark.parametrize(
    ("name", "device", "block_size", "dtype", "runs"),
    [("auto", CPU, 16, "int8", "xla"), ("auto", A100, 16, "fp8", "pallas"),
     ("auto", B200, 8, "float32", "pallas"), ("auto", H200, 256, "bfloat16", "pallas"),
     ("auto", V100, 16, "float16", "xla"), ("auto", MI300, 16, "float16", "xla"),
     ("auto", A100, 4, "int8", "xla"), ("auto", A100, 24, "int8", "xla"),
     ("auto", A100, 512, "int8", "xla"), ("xla", CPU, 3, "int8", "xla"),
     ("xla", H200, 16, "fp8", "xla"), ("pallas", A100, 16, "fp8", "pallas"),
     ("pallas_interpret", CPU, 8, "fp8", "pallas_interpret"),
     ("pallas_mosaic", H200, 64, "bfloat16", "pallas_mosaic")],
)  # fmt: skip
def test_the_chosen_implementation(
    name: str, device: Any, block_size: int, dtype: str, runs: str
) -> None:
    assert resolve(name, device, block_size, dtype, head_dim=64) == runs


@pytest.mark.parametrize(
    ("name", "device", "block_size", "dtype", "message"),
    [("pallas", CPU, 16, "int8", r"'pallas' needs an NVIDIA GPU.* 8\.0.*'cpu' \(cpu\).*'xla'"),
     ("pallas", V100, 16, "int8", r"needs an NVIDIA GPU.*'Tesla V100' \(gpu\) of .* 7\.0.*'xla'"),
     ("pallas", MI300, 16, "int8", r"needs an NVIDIA GPU.*'AMD Instinct'"),
     ("pallas", A100, 4, "int8", "power of two from 8 to 256, and not 4;.*'xla'"),
     ("pallas", A100, 24, "int8", "not 24"), ("pallas", A100, 512, "int8", "not 512"),
     ("pallas_interpret", CPU, 12, "int8", "'pallas_interpret' needs a block_size.*not 12"),
     ("pallas_mosaic", A100, 16, "bfloat16", r"needs a Hopper GPU.*A100.* 8\.0.*'auto'"),
     ("pallas_mosaic", B200, 16, "bfloat16", r"Hopper.*10\.0"),
     ("pallas_mosaic", H200, 16, "fp8", "needs kv_cache_dtype='bfloat16' or.*'fp8'.*'auto'"),
     ("pallas_mosaic", H200, 16, "float32", "the pool's is 'float32'")],
)  # fmt: skip
def test_unsupported_choices_say_why(
    name: str, device: Any, block_size: int, dtype: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(name, device, block_size, dtype, head_dim=64)
