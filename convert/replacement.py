"""A folder that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def check_target(src: Path, dst: Path, overwrite: bool) -> None:
    """Refuse a target that exists (FileExistsError) or would touch the source (ValueError).

    overwrite: a folder may exist; a file, a device and a link may not.
    """
    source, target = src.resolve(), dst.resolve()
    if target == source or source in target.parents or target in source.parents:
        raise ValueError(f"{dst} and the source {src} lie in each other; choose another folder")
    _check_free(dst, overwrite)


@contextmanager
def replacement(dst: Path, overwrite: bool) -> Iterator[Path]:
    """Give a new folder beside `dst` that becomes `dst` when the block ends without an exception.

    After any exception, an interrupt too, the new folder is gone and what was at `dst` is still
    there. Once the new folder is in place nothing raises, not even an interrupt while the old one
    is removed.
    """
    dst = dst if dst.is_symlink() else dst.resolve()  # `.` cannot be renamed by that name
    made = _make_parents(dst)
    folder = _sibling(dst, "new")
    try:
        folder.mkdir()
        yield folder
        _swap(folder, dst, overwrite)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        for parent in made:
            with suppress(OSError):  # someone else has put something there
                parent.rmdir()
        raise


def _check_free(dst: Path, overwrite: bool) -> None:
    if dst.is_symlink():
        raise FileExistsError(f"{dst} is a link; remove it, or name the folder it leads to")
    if dst.exists() and not dst.is_dir():
        raise FileExistsError(f"{dst} exists and is no folder; choose another name")
    if os.path.ismount(dst):
        raise FileExistsError(f"{dst} is a mount point; name a folder within it")
    if dst.exists() and not overwrite:
        raise FileExistsError(f"{dst} exists; choose another folder, or overwrite it")


def _make_parents(dst: Path) -> list[Path]:
    """Create the folders above `dst`; return those that were not there, the deepest first."""
    made = [parent for parent in dst.absolute().parents if not parent.exists()]
    dst.absolute().parent.mkdir(parents=True, exist_ok=True)
    return made


def _sibling(dst: Path, what: str) -> Path:
    # On the same file system, so that the last step is a rename.
    return dst.absolute().parent / f".{dst.name}.{what}-{uuid.uuid4().hex[:12]}"


def _swap(folder: Path, dst: Path, overwrite: bool) -> None:
    # Someone else may have made it since it was checked first.
    _check_free(dst, overwrite)
    new, old = folder.stat(), _sibling(dst, "old")
    try:
        if dst.exists():
            dst.rename(old)
        folder.rename(dst)
    except BaseException:
        # An interrupt may come after the last rename, and then the work is done.
        if not (dst.exists() and os.path.samestat(new, dst.stat())):
            if old.exists():
                old.rename(dst)
            raise
    if old.exists():
        _remove(old, dst)


def _remove(old: Path, dst: Path) -> None:
    """Remove what was at `dst`, whose successor is in place: no failure here is one of the whole.

    What cannot be removed, or not before an interrupt, is named in one line.
    """
    rest = _sibling(dst, "half-removed")
    with suppress(BaseException):
        old.rename(rest)
        shutil.rmtree(rest, ignore_errors=True)
    for left in (old, rest):
        if left.exists():
            print(
                f"{dst} is replaced; remove what is left of the old folder: {left}", file=sys.stderr
            )
