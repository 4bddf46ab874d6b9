"""Checkpoints in, params out: `convert` writes a folder, `load_checkpoint` reads any kind."""

from .converter import convert, load_checkpoint

__all__ = ["convert", "load_checkpoint"]
