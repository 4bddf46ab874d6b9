"""Links, imports, the quickstart and the overview picture of the documentation."""

import ast
import importlib
import re

from bench.report.draw_overview import TARGET, overview
from tests.docs.pages import PAGES, ROOT, blocks, each_page, prose

LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page) -> set[str]:
    """The anchors that GitHub generates from the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_readme_is_one_page():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@each_page
def test_link_targets_exist(page):
    for link in LINK.findall(prose(page)):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@each_page
def test_imported_names_exist(page):
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


@each_page
def test_reference_links_are_defined(page):
    text = prose(page)
    defined = re.findall(r"^\[([\w-]+)\]: https://", text, re.MULTILINE)
    assert set(re.findall(r"\]\[([\w-]+)\]", text)) == set(defined)
    assert len(defined) == len(set(defined))


def test_every_page_is_linked_from_the_readme():
    links = LINK.findall(prose(ROOT / "README.md"))
    assert {f"docs/{page.name}" for page in PAGES[1:]} <= set(links)


def test_overview_is_what_the_script_draws():
    assert TARGET.read_text(encoding="utf-8") == overview()
