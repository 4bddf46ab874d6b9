"""The commands, options, Makefile targets and extras that the documentation names exist."""

import argparse
import importlib
import importlib.util
import re
import tomllib

import pytest

from tests.docs.pages import ROOT, blocks, commands, each_page, pages_with, prose

# The module that has `main`, if it is not the module that `python -m` names.
MODULES = {
    "pagedjax": "pagedjax.__main__",
    "pagedjax.convert": "pagedjax.convert.__main__",
    "bench.attention": "bench.attention.command",
    "bench.memory": "bench.memory.command",
}


class Parsed(BaseException):
    """Raised after a command line was parsed, so that the command does not run."""


def parse(module, arguments, monkeypatch):
    own = argparse.ArgumentParser.parse_args

    def parse_args(parser, *args, **options):
        own(parser, *args, **options)
        raise Parsed

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        with pytest.raises(Parsed):
            importlib.import_module(module).main(arguments)


@pages_with(commands)
def test_commands_are_parsed(page, monkeypatch):
    for python, *arguments in commands(page):
        assert python == "python"
        if arguments[0] != "-m":
            assert (ROOT / arguments[0]).exists()
            continue
        name = arguments[1]
        parse(MODULES.get(name, name), arguments[2:], monkeypatch)


@each_page
def test_modules_named_in_the_text_exist(page):
    for name in re.findall(r"`python -m ([\w.]+)", prose(page)):
        assert importlib.util.find_spec(name), name


@each_page
def test_targets_and_extras_exist(page):
    text = "".join(blocks(page, ""))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\S+)", text, re.MULTILINE):
        assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), target
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra in re.findall(r'^pip install "\.\[(\w+)\]"', text, re.MULTILINE):
        assert extra in project["optional-dependencies"]
    assert "python" not in text, "mark commands with ```console"
