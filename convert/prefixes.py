"""Tensor names that differ from Hugging Face's by one prefix on every tensor.

`torch.compile` saves names under `_orig_mod.`, DistributedDataParallel under `module.`, and a
checkpoint of a bare base model (such as LlamaModel) has no `model.`.
"""

from __future__ import annotations

from collections.abc import Mapping

from .source import TensorRef

MODEL = "model."
NAMED_AT_MOST = 3


def without_prefix(tensors: Mapping[str, TensorRef], embed: str) -> Mapping[str, TensorRef]:
    """Return the tensors under the names of the family.

    embed: the family's name of the token embedding, such as "model.embed_tokens.weight", by which
        a prefix is recognised.
    Raises ValueError, naming tensors, if only some have the prefix.
    """
    base = embed.removeprefix(MODEL)
    found = [name for name in tensors if name == base or name.endswith(f".{base}")]
    if embed in tensors or len(found) != 1:
        return tensors
    prefix, added = found[0].removesuffix(base), MODEL
    if f".{prefix}".endswith(f".{MODEL}"):
        prefix, added = prefix.removesuffix(MODEL), ""
    others = [name for name in tensors if not name.startswith(prefix)]
    if others:
        more = len(others) - NAMED_AT_MOST
        raise ValueError(
            f"the embedding is named {found[0]!r}, but {len(others)} tensors lack its prefix "
            f"{prefix!r}: {', '.join(others[:NAMED_AT_MOST])}"
            + (f" and {more} more" if more > 0 else "")
        )
    return {added + name.removeprefix(prefix): each for name, each in tensors.items()}
