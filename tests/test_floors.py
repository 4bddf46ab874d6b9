"""The house's floors: who may import whom, and how large a file and a function may be."""

import ast
import re
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Folders and top-level files of `pagedjax/`, lowest floor first. An import goes to the same folder
# or to a lower floor. Within a folder, no two files may import each other, directly or not.
FLOORS = (
    "pallas_kernels",
    "pagedjax.version",
    "pagedjax.checks",
    "pagedjax.architecture",
    "pagedjax.config",
    "pagedjax.engine_options",
    "pagedjax.sampling_params",
    "pagedjax.outputs",
    "pagedjax.devices",
    "pagedjax.schedule",
    "pagedjax.text",
    "pagedjax.weights",
    "pagedjax.layers",
    "pagedjax.models",
    "pagedjax.sample",
    "pagedjax.step",
    "pagedjax.convert",
    "pagedjax.intake",
    "pagedjax.engine",
    "pagedjax.search",
    "pagedjax.llm",
    "pagedjax",
    "pagedjax.__main__",
)
# Host state: these import the standard library and each other.
STDLIB = tuple(
    f"pagedjax.{name}"
    for name in ("checks", "architecture", "config", "sampling_params", "outputs", "schedule")
)

MAX_FILE, MAX_FUNCTION = 250, 60  # lines


def module_name(path):
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] == "convert":
        parts.insert(0, "pagedjax")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources():
    folders = ("pagedjax", "convert", "pallas_kernels")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


OURS = {module_name(path) for path in sources()}
SOURCES = pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))


def imports(path):
    """Dotted names of the modules that a file imports, lazily or not, ours in full."""
    package = module_name(path).split(".")
    package = package if path.name == "__init__.py" else package[:-1]
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*base, node.module] if node.module else base)
            for alias in node.names:
                inner = f"{base}.{alias.name}"  # a module of the package, or a name in it
                found.add(inner if inner in OURS else base)
    return found


def place(module):
    """The folder or top-level file that a module belongs to."""
    parts = module.split(".")
    return parts[0] if parts[0] == "pallas_kernels" else ".".join(parts[:2])


def test_the_folders_are_the_floors():
    """The tree and the list above name the same places."""
    tree_names = {place(name) for name in OURS}
    assert tree_names == set(FLOORS)


@SOURCES
def test_imports_go_to_lower_floors(path):
    name = module_name(path)
    floor = FLOORS.index(place(name))
    upward = {each for each in imports(path) & OURS if FLOORS.index(place(each)) > floor}
    assert upward == set()


def test_no_files_import_each_other():
    graph = {module_name(path): imports(path) & OURS for path in sources()}
    order = TopologicalSorter({name: graph[name] - {name} for name in graph})
    order.prepare()  # raises CycleError, which names the cycle


@pytest.mark.parametrize("folder", sorted({path.parent for path in sources()}), ids=str)
def test_each_folder_says_what_it_holds_and_what_it_may_import(folder):
    if folder.parent == ROOT and folder.name == "pagedjax":
        return  # its `__init__` is the list of public names
    text = ast.get_docstring(tree(folder / "__init__.py"))
    assert text and "import" in text.lower()


@SOURCES
def test_nothing_imports_what_stands_on_top(path):
    outside = {each.split(".")[0] for each in imports(path)}
    assert not outside & {"bench", "tests", "examples", "convert"}


@SOURCES
def test_host_state_needs_the_standard_library_alone(path):
    if place(module_name(path)) not in STDLIB:
        return
    others = {each for each in imports(path) if each.split(".")[0] not in sys.stdlib_module_names}
    assert {each for each in others if place(each) not in STDLIB} == set()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "pallas_kernels").rglob("*.py")), ids=lambda p: p.name
)
def test_kernels_know_jax_alone(path):
    known = {"jax", "numpy", "pallas_kernels", *sys.stdlib_module_names}
    assert {each for each in imports(path) if each.split(".")[0] not in known} == set()


@pytest.mark.parametrize("path", sorted((ROOT / "convert").rglob("*.py")), ids=lambda p: p.name)
def test_the_converter_imports_itself_relatively(path):
    absolute = {
        alias
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and not node.level
        for alias in [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
    }
    assert not {name for name in absolute if re.match(r"(pagedjax\.)?convert(\.|$)", name)}


@SOURCES
def test_every_module_says_what_it_is(path):
    assert ast.get_docstring(tree(path))


@SOURCES
def test_no_file_is_a_drawer(path):
    assert path.stem not in ("utils", "util", "helpers", "common", "misc", "manager")


@pytest.mark.parametrize("folder", ["pagedjax", "convert", "bench", "tests", "examples"])
def test_files_are_short(folder):
    lengths = {
        path.name: len(path.read_text(encoding="utf-8").splitlines())
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {name: length for name, length in lengths.items() if length > MAX_FILE} == {}


@pytest.mark.parametrize("folder", ["pagedjax", "convert"])
def test_functions_are_short(folder):
    functions = {
        f"{path.name}:{node.name}": node.end_lineno - node.lineno + 1
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: length for name, length in functions.items() if length > MAX_FUNCTION} == {}
