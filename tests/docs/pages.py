"""The pages of the documentation and their code blocks."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def pages_with(found: Callable[[Path], Any]) -> pytest.MarkDecorator:
    """Parametrize a test with the pages for which `found` is true."""
    pages = [page for page in PAGES if found(page)]
    return pytest.mark.parametrize("page", pages, ids=lambda page: page.name)


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of the page in `language`, in order."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [code for name, code in found if name == language]


def commands(page: Path) -> list[list[str]]:
    """The commands of the page's console blocks, split as a shell does."""
    lines = "".join(blocks(page, "console")).splitlines()
    return [shlex.split(line[2:], comments=True) for line in lines if line.startswith("$ ")]
