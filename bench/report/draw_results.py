"""The plots of the README, drawn from the JSON files in bench/results as reproducible SVG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.report import bar_chart, memory_section, results

FOLDER = Path(__file__).parents[2] / "docs"
# Result and label of each group of bars.
THROUGHPUT = (
    ("throughput_smollm2_bf16_cpu", "bfloat16, AVX-512"),
    ("throughput_smollm2_f32_cpu", "float32, AVX-512"),
    ("throughput_smollm2_bf16_cpu_avx2", "bfloat16, AVX2"),
    ("throughput_smollm2_f32_cpu_avx2", "float32, AVX2"),
)
MEMORY = "memory"
COLOURS = ("#1a73e8", "#f29900", "#9aa0a6", "#188038")
MANAGER_COLOURS = ("#9aa0a6", "#f29900", "#c58af9", "#1a73e8")
STYLE = {"svg.hashsalt": "pagedjax", "svg.fonttype": "none"}


def plots() -> dict[Path, str]:
    """Return the SVG of each plot by its path."""
    return {
        FOLDER / "throughput.svg": _svg(_draw_throughput),
        FOLDER / "kv_utilization.svg": _svg(_draw_utilization),
    }


def _svg(draw: Any) -> str:
    """Draw on new axes; return SVG without a date and without random ids."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure = bar_chart.figure(width=9)
        axes = figure.add_axes((0.08, 0.18, 0.9, 0.72))
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        target = io.StringIO()
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in target.getvalue().splitlines()) + "\n"


def _draw_throughput(axes: Any) -> None:
    """A group for each run, a bar for each engine, whiskers from the slowest to the fastest."""
    found = [results.load(name) for name, _ in THROUGHPUT]
    engines = [
        {each["name"]: each["tokens_per_second"] for each in run["engines"]} for run in found
    ]
    names = list(dict.fromkeys(name for run in engines for name in run))
    for number, name in enumerate(names):
        groups = [group for group, run in enumerate(engines) if name in run]
        spreads = [engines[group][name] for group in groups]
        medians = [each["median"] for each in spreads]
        below = [each["median"] - each["min"] for each in spreads]
        above = [each["max"] - each["median"] for each in spreads]
        _bars(axes, groups, number, len(names), medians, name, COLOURS[number], (below, above))
    _finish(axes, [label for _, label in THROUGHPUT], "output tokens/s")
    requests, cores = found[0]["workload"]["requests"], found[0]["header"]["cores"]
    model = results.model(found[0])
    axes.set_title(f"{model}, {requests} requests, CPUs with {cores} cores: median, min, max")


def _draw_utilization(axes: Any) -> None:
    """A group for each mix of lengths, a bar for each way to reserve memory."""
    result = results.load(MEMORY)
    mixes = list(result["mixes"])
    usual = result["parameters"]["block_size"]
    managers = [
        name
        for name in memory_section.reservations(result)
        if "paged" not in name or name.endswith(f" {usual}")
    ]
    for number, name in enumerate(managers):
        shares = [100 * memory_section.utilization(result, mix, name) for mix in mixes]
        colour = MANAGER_COLOURS[number]
        _bars(axes, range(len(mixes)), number, len(managers), shares, name, colour)
    _finish(axes, mixes, "share that holds tokens, %")
    axes.set_ylim(0, 108)
    axes.set_title("Utilization of the reserved KV memory, simulated, by mix of request lengths")


def _bars(
    axes: Any,
    groups: Sequence[int],
    number: int,
    count: int,
    heights: Sequence[float],
    label: str,
    colour: str,
    whiskers: Any = None,
) -> None:
    """Draw bar `number` of `count` in each of `groups`."""
    width = 0.84 / count
    left = [group + (number - (count - 1) / 2) * width for group in groups]
    drawn = axes.bar(
        left, heights, width, label=label, color=colour, yerr=whiskers, capsize=3,
        error_kw={"linewidth": 1},
    )  # fmt: skip
    axes.bar_label(drawn, fmt="{:.1f}", fontsize="small", padding=2)


def _finish(axes: Any, groups: Sequence[str], label: str) -> None:
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(label)
    axes.legend(
        fontsize="small", ncols=4, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.1)
    )
