"""The params tree: one rule per leaf, from which everything else derives.

Loading, random initialisation, shardings and shape checks all read the same list of rules, so
the structure of the tree is written down once, in the family's module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

Path = tuple[str | int, ...]
Params = dict[str, Any]


@dataclass(frozen=True)
class ParamRule:
    """One leaf of the params tree and the Hugging Face tensors that it is made of.

    path: where the leaf sits, e.g. ("layers", 3, "qkv").
    shape: of the leaf.
    sources: names of the Hugging Face tensors, in the order that `assemble` takes them.
    source_shapes: the shape that each source must have.
    assemble: reshapes and joins the sources; never changes a value.
    spec: how the leaf is divided over the mesh.
    kind: "matrix", "norm" or "bias"; decides the random initialisation.
    """

    path: Path
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    source_shapes: tuple[tuple[int, ...], ...]
    assemble: Callable[[Sequence[Any]], Any]
    spec: PartitionSpec
    kind: str

    @property
    def name(self) -> str:
        """The path as text, e.g. `layers/3/qkv`."""
        return "/".join(str(part) for part in self.path)


def build_tree(leaves: Mapping[Path, Any]) -> Params:
    """Nest leaves by path; a level whose keys are ints becomes a tuple."""
    grouped: dict[str | int, dict[Path, Any]] = {}
    for path, leaf in leaves.items():
        grouped.setdefault(path[0], {})[path[1:]] = leaf
    level = {key: inner[()] if () in inner else build_tree(inner) for key, inner in grouped.items()}
    if all(isinstance(key, int) for key in level):
        return tuple(level[index] for index in range(len(level)))  # type: ignore[return-value]
    return level  # type: ignore[return-value]


def flatten_tree(tree: Any, prefix: Path = ()) -> dict[Path, Any]:
    """The inverse of `build_tree`."""
    if isinstance(tree, Mapping):
        items: Any = tree.items()
    elif isinstance(tree, tuple | list):
        items = enumerate(tree)
    else:
        return {prefix: tree}
    leaves: dict[Path, Any] = {}
    for key, inner in items:
        leaves.update(flatten_tree(inner, (*prefix, key)))
    return leaves


def check_params(rules: Sequence[ParamRule], params: Params) -> None:
    """Raise ValueError naming every leaf that is missing, unexpected or wrongly shaped."""
    leaves = flatten_tree(params)
    expected = {rule.path: rule for rule in rules}
    problems = [f"{rule.name} is missing" for rule in rules if rule.path not in leaves]
    for path, leaf in leaves.items():
        if path not in expected:
            problems.append(f"{'/'.join(map(str, path))} is unexpected")
        elif tuple(leaf.shape) != expected[path].shape:
            problems.append(
                f"{expected[path].name} has shape {tuple(leaf.shape)}, not {expected[path].shape}"
            )
    if problems:
        raise ValueError("params do not fit the model config: " + "; ".join(problems))


def init_leaves(
    rules: Sequence[ParamRule], key: jax.Array, dtype: DTypeLike, initializer_range: float
) -> Params:
    """Random params: normal matrices, zero biases, norms of one.

    Each leaf's key is folded from its index in `rules`, so one leaf's values do not depend on
    the others' shapes.
    """
    leaves = {}
    for index, rule in enumerate(rules):
        if rule.kind == "matrix":
            drawn = jax.random.normal(jax.random.fold_in(key, index), rule.shape, jnp.float32)
            leaves[rule.path] = (drawn * initializer_range).astype(dtype)
        else:
            leaves[rule.path] = jnp.full(rule.shape, float(rule.kind == "norm"), dtype)
    return build_tree(leaves)
