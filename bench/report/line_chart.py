"""Line charts in adjacent panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.report import bar_chart

Line = tuple[Sequence[float], Sequence[float]]  # x and y of its points


@dataclass(frozen=True)
class Panel:
    """One pair of axes. log: whether x is logarithmic. marked: whether points are marked."""

    x: str
    y: str
    lines: Mapping[str, Line]
    log: bool = False
    marked: bool = True


def draw(panels: Sequence[Panel], title: str, path: Path) -> None:
    """Write the chart to `path`, in the format that its suffix names."""
    figure = bar_chart.figure(width=5 * len(panels))
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name, (x, y) in panel.lines.items():
            axes.plot(x, y, marker="o" if panel.marked else None, label=name)
        if panel.log:
            axes.set_xscale("log", base=2)
            ticks = sorted({each for x, _ in panel.lines.values() for each in x})
            axes.set_xticks(ticks, [f"{each:,}" for each in ticks])
        axes.set_xlabel(panel.x)
        axes.set_ylabel(panel.y)
        axes.set_ylim(bottom=0)
        if len(panel.lines) > 1:
            axes.legend(fontsize="small")
    figure.suptitle(title, fontsize="medium")
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def shares(values: Sequence[float]) -> Line:
    """Return the cumulative distribution of sorted values: the share of them that is at most x."""
    return values, [(index + 1) / len(values) for index in range(len(values))]
