"""Atomic creation or replacement of a folder."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def check_target(src: Path, dst: Path, overwrite: bool) -> None:
    """Raise FileExistsError if the target exists, ValueError if it overlaps the source.

    overwrite: allow an existing folder, but not a file, device or link.
    """
    source, target = src.resolve(), dst.resolve()
    if target == source or source in target.parents or target in source.parents:
        raise ValueError(
            f"{dst} and the source {src} must not lie in each other; choose another folder"
        )
    _check_free(dst, overwrite)


@contextmanager
def replacement(dst: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a new folder beside `dst` that becomes `dst` if the block ends without an exception.

    After any exception, including an interrupt, the new folder is removed and `dst` is unchanged.
    Once the new folder is in place nothing raises, not even an interrupt while the old folder is
    being removed.
    """
    dst = dst if dst.is_symlink() else dst.resolve()  # `.` itself cannot be renamed
    made = _make_parents(dst)
    folder = _sibling(dst, "new")
    try:
        folder.mkdir()
        yield folder
        _swap(folder, dst, overwrite)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        for parent in made:
            with suppress(OSError):  # another process may have put something there
                parent.rmdir()
        raise


def _check_free(dst: Path, overwrite: bool) -> None:
    if dst.is_symlink():
        raise FileExistsError(f"{dst} is a link; remove it, or name the folder that it points to")
    if dst.exists() and not dst.is_dir():
        raise FileExistsError(f"{dst} exists and is no folder; choose another name")
    if os.path.ismount(dst):
        raise FileExistsError(f"{dst} is a mount point; name a folder within it")
    if dst.exists() and not overwrite:
        raise FileExistsError(f"{dst} exists; choose another folder, or overwrite it")


def _make_parents(dst: Path) -> list[Path]:
    """Create the parent folders of `dst`; return those that did not exist, deepest first."""
    made = [parent for parent in dst.absolute().parents if not parent.exists()]
    dst.absolute().parent.mkdir(parents=True, exist_ok=True)
    return made


def _sibling(dst: Path, what: str) -> Path:
    # On the same file system, so that it can be renamed to `dst`.
    return dst.absolute().parent / f".{dst.name}.{what}-{uuid.uuid4().hex[:12]}"


def _swap(folder: Path, dst: Path, overwrite: bool) -> None:
    # Another process may have created `dst` since the first check.
    _check_free(dst, overwrite)
    new, old = folder.stat(), _sibling(dst, "old")
    try:
        if dst.exists():
            dst.rename(old)
        folder.rename(dst)
    except BaseException:
        # If an interrupt arrives after the last rename, the replacement is complete.
        if not (dst.exists() and os.path.samestat(new, dst.stat())):
            if old.exists():
                old.rename(dst)
            raise
    if old.exists():
        _remove(old, dst)


def _remove(old: Path, dst: Path) -> None:
    """Remove the old folder after it was replaced; a failure here does not fail the conversion.

    Prints one line for each folder that could not be removed.
    """
    rest = _sibling(dst, "half-removed")
    with suppress(BaseException):
        old.rename(rest)
        shutil.rmtree(rest, ignore_errors=True)
    for left in (old, rest):
        if left.exists():
            print(f"{dst} is replaced; remove the rest of the old folder: {left}", file=sys.stderr)
