"""The attention benchmark's arithmetic: bytes, flops, layers of the pool, and grids of cases."""

import pytest

from bench.attention import problem as attention_problem
from bench.attention import roofline
from bench.attention.shapes import MODELS, Case, Heads, decode, decode_grid, prefill_grid
from pagedjax.config import ModelConfig
from pagedjax.layers.kv_cache import block_bytes
from tests.support.attention_cases import SMALL

MIB = 1 << 20


def test_bytes_and_intensity_of_llama_3_8b():
    """32 rows x 4,096 keys x 2 x 8 kv heads x 128 numbers of 2 bytes."""
    work = roofline.work(decode(MODELS["llama-3-8b"], 32, 4096), "bf16")
    assert work.kv_bytes == 32 * 4096 * 2 * 8 * 128 * 2 == 512 * MIB
    assert work.scale_bytes == 0
    assert work.query_bytes == 2 * 32 * 32 * 128 * 2 == MIB // 2
    assert work.flops == 32 * 4096 * 32 * 128 * 4 == 2 << 30
    assert work.intensity == pytest.approx((2 << 30) / (512.5 * MIB)) == pytest.approx(3.996, 1e-3)


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_bytes_of_one_byte_pools(dtype):
    """Half of bfloat16's, and one scale for each of 32 x 4,096 x 2 x 8 vectors, as in the pool."""
    work = roofline.work(decode(MODELS["llama-3-8b"], 32, 4096), dtype)
    assert work.kv_bytes == 256 * MIB
    assert work.scale_bytes == 32 * 4096 * 2 * 8 * roofline.scale_itemsize(dtype)
    one_layer = ModelConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_layers=1, num_heads=32,
        num_kv_heads=8, head_dim=128,
    )  # fmt: skip
    assert work.kv_bytes + work.scale_bytes == block_bytes(one_layer, 16, dtype) * 32 * 4096 // 16


def test_flops_of_a_prompt_count_the_causal_triangle():
    """8 queries see 1 + 2 + ... + 8 keys; the last 2 of 8 see 7 + 8."""
    heads = Heads("one", 1, 1, 16)
    assert roofline.work(Case(heads, "prefill", "", (8,), (8,)), "bf16").flops == 36 * 16 * 4
    assert roofline.work(Case(heads, "prefill", "", (8,), (2,)), "bf16").flops == 15 * 16 * 4


def test_number_of_layers_exceeds_caches_and_suits_the_kernels():
    """128 rows of 16,384 keys have 2**31 elements a layer; kernels reject two layers of int8."""
    heads = MODELS["llama-3-8b"]
    assert attention_problem.num_layers(decode(heads, 1, 256), "bf16") == 8
    assert attention_problem.num_layers(decode(heads, 32, 4096), "bf16") == 2
    large = decode(heads, 128, 16384)
    assert [attention_problem.num_layers(large, each) for each in ("bf16", "int8")] == [2, 3]


def test_grids():
    cases = list(decode_grid(SMALL, (1, 8), (64, 128)))
    assert [case.rows for case in cases] == [1, 1, 8, 8, 8]
    mixed = cases[-1]
    assert not mixed.is_uniform and 16 <= min(mixed.contexts) and max(mixed.contexts) == 128
    prompt, chunk, mix = prefill_grid(SMALL, 64)
    assert (prompt.contexts, prompt.queries, prompt.starts_empty) == ((256,), (256,), True)
    assert (chunk.contexts, chunk.queries, chunk.starts_empty) == ((320,), (64,), False)
    assert mix.contexts == (64, 32, 16, 8, 4, 2) and mix.starts_empty
