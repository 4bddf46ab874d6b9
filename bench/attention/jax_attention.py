"""Adapters for JAX's own attention: its paged Triton kernel, and cuDNN on dense keys.

Both read other layouts than our pools. Each layer is copied once, before timing starts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.attention.problem import Problem
from pallas_kernels.formats import format_of

MOST_SPLITS, MOST_PAGES = 16, 8  # defaults of JAX's kernel


def paged_attention() -> Callable[..., jax.Array]:
    """Return JAX's kernel. Raises NotImplementedError if this version has none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            from jax.experimental.pallas.ops.gpu import paged_attention as module
    except ImportError as error:
        raise NotImplementedError(
            f"jax {jax.__version__} has no paged_attention ({error})"
        ) from None
    return module.paged_attention


def paged_decode(
    problem: Problem, interpret: bool
) -> tuple[Callable[..., jax.Array], list[dict[str, Any]]]:
    """Return a function (q, operands) -> [B, H, D], and the operands of each layer."""
    attend = paged_attention()
    pages = problem.tables.shape[1]
    splits, at_once = split_pages(pages)

    def run(q: jax.Array, operands: dict[str, Any]) -> jax.Array:
        # The kernel does not scale the scores, so its callers round the scaled q to bfloat16.
        scaled = (q.astype(jnp.float32) * problem.scale).astype(q.dtype)
        return attend(
            scaled, k_splits=splits, pages_per_compute_block=at_once, interpret=interpret,
            block_tables=problem.tables, lengths=problem.context_lens, **operands,
        )  # fmt: skip

    layers = []
    for layer in range(problem.layers):
        operands = {
            "k_pages": _by_head(problem.k_pool[layer]), "v_pages": _by_head(problem.v_pool[layer]),
        }  # fmt: skip
        if problem.k_scales is not None and problem.v_scales is not None:
            operands["k_scales_pages"] = problem.k_scales[layer].swapaxes(0, 1)
            operands["v_scales_pages"] = problem.v_scales[layer].swapaxes(0, 1)
        layers.append(operands)
    return run, layers


def split_pages(pages: int) -> tuple[int, int]:
    """Return the splits of a row's pages, and the pages of one step.

    Both are the largest powers of two that divide: the kernel requires the table's width to be a
    multiple of their product, and Triton requires the step to be a power of two.
    """
    splits = min(MOST_SPLITS, pages & -pages)
    each = pages // splits
    return splits, min(MOST_PAGES, each & -each)


def _by_head(pool: jax.Array) -> jax.Array:
    """Transpose [N, K, T, D] to [K, N, T, D], and reinterpret fp8 bits as floats."""
    if format_of(pool) == "fp8":
        pool = jax.lax.bitcast_convert_type(pool, jnp.float8_e4m3fn)
    return pool.swapaxes(0, 1)


def dense(
    problem: Problem, implementation: str
) -> tuple[Callable[..., jax.Array], list[tuple[jax.Array, jax.Array]]]:
    """Prepare `jax.nn.dot_product_attention` on a dense copy; returns as `paged_decode` does.

    implementation: "cudnn", or "xla" to check this adapter without a GPU.
    Raises NotImplementedError for cases that the public function cannot express.
    """
    case = problem.case
    if problem.k_scales is not None:
        raise NotImplementedError("dense attention does not support one-byte pools")
    causal = case.kind == "prefill"
    if causal and not case.starts_empty:
        raise NotImplementedError(
            "its causal mask starts at the first key: queries cannot follow a context"
        )
    rows, most = case.rows, max(case.queries)
    lengths = {}
    if not case.is_uniform or max(case.contexts) != problem.tables.shape[1] * problem.size:
        lengths = {"key_value_seq_lengths": problem.context_lens}
        if causal:
            lengths["query_seq_lengths"] = problem.context_lens
    starts = np.asarray(problem.query_starts)[:-1, None]
    lanes = np.arange(most)[None]
    inside = lanes < np.array(case.queries)[:, None]
    index = np.where(inside, starts + lanes, 0)
    back = np.flatnonzero(inside)  # indices of the real queries among the padded ones
    ragged = len(back) != index.size
    attend = partial(
        jax.nn.dot_product_attention, scale=problem.scale, is_causal=causal,
        implementation=implementation, **lengths,
    )  # fmt: skip

    def run(q: jax.Array, operands: tuple[jax.Array, jax.Array]) -> jax.Array:
        padded = q[index] if ragged else q.reshape(rows, most, *q.shape[1:])
        out = attend(padded, *operands).reshape(rows * most, *q.shape[1:])
        return out[back] if ragged else out

    every = np.arange(rows)
    return run, [problem.numbers(layer, every) for layer in range(problem.layers)]
