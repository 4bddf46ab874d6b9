"""Cases that are measured: heads of known models, and batches of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Heads:
    """The attention heads of one layer of a model on one device."""

    name: str
    num_heads: int  # H
    num_kv_heads: int  # K
    width: int  # D

    @property
    def group(self) -> int:
        """Query heads per KV head, G."""
        return self.num_heads // self.num_kv_heads


MODELS = {
    each.name: each
    for each in (
        Heads("llama-3-8b", 32, 8, 128),
        Heads("llama-3-70b-tp8", 8, 1, 128),
        Heads("smollm2-135m", 9, 3, 64),
    )
}
# Dtypes of the pool: bfloat16, or the name of a one-byte format of `pallas_kernels.formats`.
DTYPES = ("bf16", "int8", "fp8")


@dataclass(frozen=True)
class Case:
    """One call of an op.

    contexts: keys of each row. queries: number of queries of each row, at the end of its context.
    """

    heads: Heads
    kind: str  # "decode" or "prefill"
    label: str
    contexts: tuple[int, ...]
    queries: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Number of rows, B."""
        return len(self.contexts)

    @property
    def is_uniform(self) -> bool:
        """Whether all rows have the same context length."""
        return len(set(self.contexts)) == 1

    @property
    def starts_empty(self) -> bool:
        """Whether the queries of every row are its whole context."""
        return self.contexts == self.queries

    @property
    def name(self) -> str:
        """Name of the case in tables and JSON."""
        return f"{self.heads.name} {self.kind} {self.label}"


def decode(heads: Heads, rows: int, context: int) -> Case:
    """Return a case with one query per row and equal context lengths."""
    return Case(heads, "decode", f"B={rows} ctx={context}", (context,) * rows, (1,) * rows)


def decode_grid(heads: Heads, rows: Sequence[int], contexts: Sequence[int]) -> Iterator[Case]:
    """Yield all batch sizes with all contexts, and one batch of mixed lengths."""
    for count in rows:
        for context in contexts:
            yield decode(heads, count, context)
    count, longest = max(rows), max(contexts)
    if count > 1:
        # Lengths in even steps from an eighth of the longest to the longest, as in a server.
        mixed = tuple(longest * (8 * n + count - n) // (8 * count) for n in range(1, count + 1))
        yield Case(heads, "decode", f"B={count} ctx={mixed[0]}-{longest}", mixed, (1,) * count)


def prefill_grid(heads: Heads, chunk: int) -> Iterator[Case]:
    """Yield a prompt of four chunks, a chunk after a context of four, and mixed prompts."""
    whole = 4 * chunk
    yield Case(heads, "prefill", f"prompt {whole}", (whole,), (whole,))
    yield Case(heads, "prefill", f"chunk {chunk} on {whole}", (whole + chunk,), (chunk,))
    mix = tuple(max(1, chunk >> shift) for shift in range(6))
    yield Case(heads, "prefill", f"prompts {mix[0]}-{mix[-1]}", mix, mix)
