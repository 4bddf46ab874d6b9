"""Figures and plots of the documentation match the JSON files in bench/results."""

import re

import pytest

from bench.report import generated, write_benchmarks
from bench.report.write_benchmarks import PAGES, ROOT, outputs

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"\d[\d,.]* ?(?:%|ms\b|s\b|MiB\b|tokens/s)|\d\.\d")
NAMES = re.compile(r"[\d.]+ TB/s|capability \d\.\d|Python \d\.\d+|Apache-2\.0")


@pytest.fixture(scope="module")
def expected():
    return outputs()


@pytest.mark.parametrize(
    "name", ["README.md", "docs/benchmarks.md", "docs/kernels.md", "docs/throughput.svg",
             "docs/kv_utilization.svg"],
)  # fmt: skip
def test_page_and_plots_match_the_results(name, expected):
    remedy = "stale; run python -m bench.report.write_benchmarks"
    assert (ROOT / name).read_text(encoding="utf-8") == expected[ROOT / name], remedy


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_figures_outside_generated_sections(page):
    text = NAMES.sub("", generated.outside(page.read_text(encoding="utf-8")))
    assert FIGURE.findall(FENCE.sub("", text)) == []


def test_a_changed_result_makes_a_page_stale():
    page = "<!-- figures: memory memory -->\nstale\n<!-- end of figures -->\n"
    filled = generated.filled(page)
    assert "stale" not in filled and "98.5%" in filled
    assert generated.filled(filled) == filled


def test_the_command_writes_changed_pages(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text("<!-- figures: memory memory -->\n<!-- end of figures -->\n")
    monkeypatch.setattr(write_benchmarks, "ROOT", tmp_path)
    monkeypatch.setattr(write_benchmarks, "PAGES", (page,))
    monkeypatch.setattr(write_benchmarks.draw_results, "plots", dict)
    for said in ("wrote page.md\n", ""):
        assert write_benchmarks.main() == 0
        assert capsys.readouterr().out == said
    assert "paged, blocks of 16" in page.read_text()
