"""Checkpoint conversion and loading: `convert` writes a folder, `load_checkpoint` reads any kind.

Imports `models`, `weights` and the layers below them; imports its own files relatively.
"""

from .converter import convert, load_checkpoint

__all__ = ["convert", "load_checkpoint"]
