"""Run every code block of the README and of docs/.

Each page runs in a folder of its own in which `path/to/checkpoint` and `path/to/source` hold a tiny
random model, so the code runs unchanged. The Python blocks of a page run in order in one namespace.
Of the console blocks, the commands of pagedjax run. Benchmarks take minutes, so `test_commands.py`
only parses their command lines.
"""

import importlib
import subprocess
import sys

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from tests.docs import checkpoint
from tests.docs.pages import ROOT, blocks, commands, pages_with

MODULES = {"pagedjax": "pagedjax.__main__", "pagedjax.convert": "pagedjax.convert.__main__"}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    checkpoint.write(folder)
    return folder


@pytest.fixture
def example_folder(model_folder, tmp_path, monkeypatch):
    """Change to a folder with a checkpoint and with the compilation cache of the tests."""
    cache = jax.config.jax_compilation_cache_dir
    targets = {"checkpoint": model_folder, "source": model_folder, "cache": cache}
    (tmp_path / "path" / "to").mkdir(parents=True)
    for name, target in targets.items():
        (tmp_path / "path" / "to" / name).symlink_to(target)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    if jax.config.jax_compilation_cache_dir != cache:
        jax.config.update("jax_compilation_cache_dir", cache)
        compilation_cache.reset_cache()


@pages_with(lambda page: blocks(page, "python"))
def test_python_blocks_run(page, example_folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["quickstart.py", "path/to/checkpoint"])
    namespace = {"__name__": "__main__"}
    for number, code in enumerate(blocks(page, "python")):
        exec(compile(code, f"{page.name}, Python block {number}", "exec"), namespace)


@pages_with(lambda page: any(each[2] in MODULES for each in commands(page) if len(each) > 2))
def test_commands_of_pagedjax_run(page, example_folder, capsys):
    for command in commands(page):
        if command[2:] and command[2] in MODULES:
            main = importlib.import_module(MODULES[command[2]]).main
            small = ["--compilation-cache", "none"] if command[2] == "pagedjax" else []
            assert main([*command[3:], *small]) == 0, capsys.readouterr().err


def test_the_quickstart_prints_what_the_readme_shows(smollm2_gguf):
    (shown,) = [code for code in blocks(ROOT / "README.md", "console") if "quickstart.py" in code]
    command, *expected = shown.splitlines()
    assert command.split()[-1] == smollm2_gguf.relative_to(ROOT).as_posix()
    run = [sys.executable, "examples/quickstart.py", str(smollm2_gguf)]
    done = subprocess.run(run, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines() == expected
