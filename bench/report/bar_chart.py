"""Bar chart of each engine's median, with whiskers from the slowest to the fastest repeat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def check(path: Path | None = None) -> None:
    """Raise ValueError if no plot can be drawn; call it before measuring.

    path: the file; its suffix must name a format. None checks for matplotlib only.
    """
    try:
        import matplotlib  # noqa: F401
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise ValueError("a plot needs matplotlib: pip install matplotlib") from None
    formats = sorted(FigureCanvasAgg.get_supported_filetypes())
    if path is not None and path.suffix[1:].lower() not in formats:
        raise ValueError(f"cannot draw {path}; its name must end in one of: {', '.join(formats)}")


def draw(spreads: dict[str, dict[str, float]], label: str, title: str, path: Path) -> None:
    """Write the chart to `path`, in the format that its suffix names.

    spreads: "median", "min" and "max" of each engine. label: the label of the y axis.
    """
    chart = figure(width=max(7, 2.5 * len(spreads)))
    axes = chart.add_subplot()
    names = list(spreads)
    medians = [spreads[name]["median"] for name in names]
    below = [spreads[name]["median"] - spreads[name]["min"] for name in names]
    above = [spreads[name]["max"] - spreads[name]["median"] for name in names]
    bars = axes.bar(_wrapped(names), medians, yerr=[below, above], capsize=6, color="tab:blue")
    axes.bar_label(bars, fmt="{:.0f}", label_type="center", color="white")
    axes.set_ylabel(label)
    axes.set_title(title, fontsize="medium")
    chart.tight_layout()
    chart.savefig(path, dpi=150)


def figure(width: float) -> Any:
    """Return an empty figure of this width in inches, which needs no display."""
    check()
    # The canvas is chosen for this figure, not for the process.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    empty = Figure(figsize=(width, 4))
    FigureCanvasAgg(empty)
    return empty


def _wrapped(names: Sequence[str]) -> list[str]:
    return [name.replace(", ", ",\n") for name in names]
