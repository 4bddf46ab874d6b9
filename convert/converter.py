"""The public functions: convert a checkpoint to a folder, and load a checkpoint of any kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from pagedjax import models
from pagedjax.architecture.model_config import ModelConfig
from pagedjax.config import check_dtype
from pagedjax.devices.mesh import make_mesh, sharding
from pagedjax.weights import checkpoint
from pagedjax.weights.params import ParamRule, Params, build_tree

from .assembly import cast
from .opener import expanded, local_path, open_source
from .plan import Plan, make_plan
from .replacement import check_target, replacement
from .safetensors_source import CONFIG, GENERATION_CONFIG, read_json
from .tokenizer import load_tokenizer


def convert(
    src: str | Path,
    dst: str | Path,
    dtype: str = "auto",
    overwrite: bool = False,
    verify: bool = False,
    progress: bool = True,
) -> None:
    """Convert the checkpoint `src`, a Hugging Face folder or a .gguf file, to the folder `dst`.

    dtype: of all params; "auto" is the source's own (bfloat16 for quantised GGUF).
    overwrite: replace an existing folder `dst`; without it, or if `dst` is not a folder, raises
        FileExistsError.
    verify: read everything back and compare it with the source bit by bit.
    progress: show a progress bar in bytes.

    Everything is checked before anything is written, and after any failure `dst` is unchanged.
    Raises FileNotFoundError, FileExistsError, ValueError (damaged or inconsistent checkpoint) or
    NotImplementedError.
    """
    src, dst = expanded(src), expanded(dst)
    check_dtype("dtype", dtype)
    check_target(src, dst, overwrite)
    plan = make_plan(open_source(src), dtype)
    with replacement(dst, overwrite) as folder:
        plan.source.save_tokenizer(folder)
        _write_configs(plan, folder)
        checkpoint.save_leaves(folder, _with_bar(plan, plan.leaves(), "convert", progress))
        checkpoint.write_marker(folder, plan.dtype)
        if verify:
            _verify(plan, folder, progress)


def load_checkpoint(
    path: str | Path,
    dtype: str = "auto",
    mesh: Mesh | None = None,
    check: Callable[[ModelConfig], Any] | None = None,
) -> tuple[ModelConfig, Params, Any]:
    """Load a converted folder, a Hugging Face folder, a .gguf file or a hub id.

    Returns the config, the params on the devices of `mesh` (one device by default) and the
    tokenizer, or None if the checkpoint has none. The same weights give bit-identical params for
    every kind of checkpoint. Raises the same errors as `convert`.

    check: called with the config, whose dtype is that of the params, before the params are read.
    """
    check_dtype("dtype", dtype)
    mesh = make_mesh(mesh)
    folder = local_path(path)
    if checkpoint.is_converted(folder):
        return _load_converted(folder, dtype, mesh, check)
    plan = make_plan(open_source(folder), dtype)
    if check is not None:
        check(plan.config)
    tokenizer = plan.source.load_tokenizer()
    return plan.config, _place(plan.leaves(), mesh), tokenizer


def _load_converted(
    folder: Path, dtype: str, mesh: Mesh, check: Callable[[ModelConfig], Any] | None
) -> tuple[ModelConfig, Params, Any]:
    stored = checkpoint.read_marker(folder)
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(f"{folder} has no {CONFIG}; convert the checkpoint again")
    generation = folder / GENERATION_CONFIG
    config = ModelConfig.from_hf(
        read_json(folder / CONFIG) | {"dtype": stored if dtype == "auto" else dtype},
        read_json(generation) if generation.is_file() else None,
    )
    if check is not None:
        check(config)
    rules = models.family(config.model_type).param_rules(config)
    tokenizer = load_tokenizer(folder)
    if dtype in ("auto", stored):
        return config, checkpoint.restore(folder, rules, mesh), tokenizer
    leaves = (
        (rule, cast(rule.name, leaf, dtype)) for rule, leaf in checkpoint.read_leaves(folder, rules)
    )
    return config, _place(leaves, mesh), tokenizer


def _place(leaves: Iterable[tuple[ParamRule, np.ndarray]], mesh: Mesh) -> Params:
    placed = {}
    for rule, leaf in leaves:
        placed[rule.path] = jax.device_put(leaf, sharding(mesh, rule.spec))
    return build_tree(placed)


def _write_configs(plan: Plan, folder: Path) -> None:
    """Write the source's configs, with the dtype and weight tying of the converted params."""
    config = {key: value for key, value in plan.source.config.items() if key != "torch_dtype"}
    config |= {"dtype": plan.dtype, "tie_word_embeddings": plan.config.tie_word_embeddings}
    _write_json(folder / CONFIG, config)
    if plan.source.generation_config is not None:
        _write_json(folder / GENERATION_CONFIG, plan.source.generation_config)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _with_bar(
    plan: Plan, leaves: Iterable[tuple[ParamRule, np.ndarray]], title: str, progress: bool
) -> Iterator[tuple[ParamRule, np.ndarray]]:
    from tqdm import tqdm

    with tqdm(
        total=plan.num_bytes, desc=title, unit="B", unit_scale=True, disable=not progress
    ) as bar:
        for rule, leaf in leaves:
            yield rule, leaf
            bar.update(leaf.nbytes)


def _verify(plan: Plan, folder: Path, progress: bool) -> None:
    written = checkpoint.read_leaves(folder, plan.rules)
    pairs = zip(_with_bar(plan, plan.leaves(), "verify", progress), written, strict=True)
    for (rule, expected), (_, found) in pairs:
        if not _same_bits(found, expected):
            raise ValueError(
                f"verification failed: {rule.name} differs from the source when read back; "
                "check the disk and convert again"
            )


def _same_bits(one: np.ndarray, two: np.ndarray) -> bool:
    if one.dtype != two.dtype or one.shape != two.shape:
        return False
    one, two = (np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (one, two))
    # In pieces, because the comparison allocates an array of the same size.
    piece = 2**24
    return all(
        np.array_equal(one[start : start + piece], two[start : start + piece])
        for start in range(0, one.size, piece)
    )
