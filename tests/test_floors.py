"""The house's floors: who may import whom, and how large a file and a function may be."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONVERT = "pagedjax.convert"

# An import may only go to a lower floor. `.*` stands for every module below.
FLOORS = {
    0: "pallas_kernels pallas_kernels.* config values version one_line mesh host_cpu step_time "
    "token_edits ranking",
    1: "sampling_params request blocks params kv_cache layers sampler penalties logprobs text "
    "stop_strings",
    2: "hooks plan mailbox host_rows holdings attention layer_ops cut_text intake accounting",
    3: "sample_output scheduler scores batch models models.* options",
    4: "transcript stats step programs checkpoint",
    5: "slot_tables invariance runner engine convert convert.*",
    6: "beam_search llm",
    7: "pagedjax __main__ convert.__main__",
}
# The imports within a floor: (importer, imported).
NEIGHBOURS = {
    ("pallas_kernels.xla", "pallas_kernels.formats"),
    ("pallas_kernels.pages", "pallas_kernels.formats"),
    ("pallas_kernels.triton_decode", "pallas_kernels.pages"),
    ("pallas_kernels.triton_decode", "pallas_kernels.tiles"),
    ("pallas_kernels.triton_add_norm", "pallas_kernels.pages"),
    ("pallas_kernels.triton_prefill", "pallas_kernels.pages"),
    ("pallas_kernels.triton_rope_write", "pallas_kernels.formats"),
    ("pallas_kernels.triton_rope_write", "pallas_kernels.pages"),
    ("pallas_kernels.triton_prefill", "pallas_kernels.tiles"),
    ("pallas_kernels.aot", "pallas_kernels.aot_report"),
    ("pagedjax.config", "pagedjax.values"),
    ("pagedjax.layer_ops", "pagedjax.attention"),
    ("pagedjax.host_rows", "pagedjax.plan"),
    ("pagedjax.penalties", "pagedjax.sampler"),
    ("pagedjax.programs", "pagedjax.step"),
    ("pagedjax.request", "pagedjax.sampling_params"),
    ("pagedjax.runner", "pagedjax.invariance"),
    ("pagedjax.runner", "pagedjax.slot_tables"),
    ("pagedjax.engine", "pagedjax.runner"),
    ("pagedjax.llm", "pagedjax.beam_search"),
}
# Host state: these import the standard library and each other.
STDLIB = {
    f"pagedjax.{name}"
    for name in (
        "values", "config", "token_edits", "sampling_params", "request", "blocks", "plan",
        "holdings", "scheduler",
    )
}  # fmt: skip

MAX_FILE, MAX_FUNCTION = 300, 60  # lines


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


def floor_of(module):
    """The floor whose entry names the module most closely."""
    matches = []
    for floor, entries in FLOORS.items():
        for entry in entries.split():
            full = entry if entry.startswith(("pagedjax", "pallas_")) else f"pagedjax.{entry}"
            if module == full or (full.endswith(".*") and module.startswith(full[:-1])):
                matches.append((len(full), floor))
    assert matches, f"{module} has no floor"
    return max(matches)[1]


def is_allowed(importer, imported):
    inside_convert = importer.startswith(CONVERT) and imported.startswith(CONVERT)
    lower = floor_of(imported) < floor_of(importer)
    return lower or inside_convert or (importer, imported) in NEIGHBOURS


@SOURCES
def test_imports_go_to_lower_floors(path):
    name = module_name(path)
    ours = {each for each in imports(path) if each in OURS}
    assert {each for each in ours if not is_allowed(name, each)} == set()


def test_every_entry_of_the_table_exists():
    """A file that is gone leaves the table too."""
    entries = {entry for line in FLOORS.values() for entry in line.split() if entry[-1] != "*"}
    assert {each for each in entries if not OURS & {each, f"pagedjax.{each}"}} == set()


def test_every_named_exception_is_needed():
    used = {(module_name(path), each) for path in sources() for each in imports(path)}
    within = {pair for pair in NEIGHBOURS if floor_of(pair[0]) == floor_of(pair[1])}
    assert within & used == NEIGHBOURS


@SOURCES
def test_nothing_imports_what_stands_on_top(path):
    outside = {each.split(".")[0] for each in imports(path)}
    assert not outside & {"bench", "tests", "examples", "convert"}


@pytest.mark.parametrize("name", sorted(STDLIB))
def test_host_state_needs_the_standard_library_alone(name):
    (path,) = (path for path in sources() if module_name(path) == name)
    others = {each for each in imports(path) if each.split(".")[0] not in sys.stdlib_module_names}
    assert others <= STDLIB


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


@pytest.mark.parametrize("folder", ["pagedjax", "convert"])
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
