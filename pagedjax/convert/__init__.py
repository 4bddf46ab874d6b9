"""In the checkout, `pagedjax.convert` is the top-level folder `convert/`, which a wheel holds.

Python finds this file when it runs uninstalled from the project's root or from an editable
install: it points the package at the real folder and re-exports the same public names.
It imports no more.
"""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[2] / "convert")]

from .converter import convert, load_checkpoint  # noqa: E402

__all__ = ["convert", "load_checkpoint"]
