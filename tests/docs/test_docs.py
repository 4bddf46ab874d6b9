"""The documentation against the code: links, imports, the quickstart and the picture."""

import ast
import importlib
import re

from bench.report.draw_overview import TARGET, overview
from tests.docs.pages import PAGES, ROOT, blocks, each_page, prose

LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page) -> set[str]:
    """What GitHub makes of the headings: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_readme_is_one_page():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@each_page
def test_links_lead_somewhere(page):
    for link in LINK.findall(prose(page)):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@each_page
def test_python_blocks_import_what_exists(page):
    for code in blocks(page, "python"):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pagedjax"):
                module = importlib.import_module(node.module)
                missing = [each.name for each in node.names if not hasattr(module, each.name)]
                assert not missing, f"{node.module} has no {missing}"


def test_readme_shows_the_quickstart():
    script = (ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8")
    docstring, _, code = script.partition("\n\n")
    assert docstring.startswith('"""')
    assert code in blocks(ROOT / "README.md", "python")


def test_every_page_is_linked_from_the_readme():
    links = LINK.findall(prose(ROOT / "README.md"))
    assert {f"docs/{page.name}" for page in PAGES[1:]} <= set(links)


def test_overview_is_what_the_script_draws():
    assert TARGET.read_text(encoding="utf-8") == overview()
