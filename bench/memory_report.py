"""The memory benchmark's result, a dict that JSON can hold, as tables and as a chart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.bar_chart import check

__all__ = ["check", "draw", "lines", "table"]

SHARES = ("stored", "reserved", "internal", "external", "idle")
COLOURS = ("tab:blue", "tab:cyan", "tab:red", "tab:orange", "lightgrey")
# Savings that arXiv 2309.06180 measured, from widths of 2 to 6.
BANDS = {("parallel", "19/58"): "6-10 %", ("parallel", "161/338"): "16-30 %"}
BEAM_BAND = "37-66 %"
PAPER_UTILIZATION, CONTIGUOUS_LIMIT, AGREEMENT = 0.963, 0.40, 0.005


def lines(result: dict[str, Any]) -> list[str]:
    """All tables, with what is needed to read them."""
    return [
        *_parameters(result),
        *_steady_state(result),
        *_closed_form(result),
        *_sharing(result),
        *_common_prompt(result),
    ]


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Text in columns: the first to the left, the others to the right."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *rest = zip(cells, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)])

    return [line(columns), "  ".join("-" * width for width in widths), *map(line, rows)]


def draw(result: dict[str, Any], path: Path) -> None:
    """Write a chart of what the memory is used for, a panel a mix, to `path`."""
    check()
    # The canvas is chosen here and not for the process, and it needs no display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    mixes = list(result["mixes"])
    figure = Figure(figsize=(4 * len(mixes), 4.5))
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(mixes), sharey=True)
    for mix, axes in zip(mixes, panels, strict=True):
        _draw_panel(axes, mix, _compared(result, mix))
    panels[0].set_ylabel("share of the KV memory, %")
    panels[-1].legend(*reversed_legend(panels[-1]), loc="center left", bbox_to_anchor=(1, 0.5))
    figure.suptitle(_memory(result), fontsize="medium")
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def reversed_legend(axes: Any) -> tuple[list[Any], list[str]]:
    """Handles and labels in the order in which the bars are stacked, from the top."""
    handles, labels = axes.get_legend_handles_labels()
    return handles[::-1], labels[::-1]


def _draw_panel(axes: Any, mix: str, entries: list[dict[str, Any]]) -> None:
    names = [each["what"].replace(" ", "\n", 1) for each in entries]
    bottom = [0.0] * len(entries)
    for share, colour in zip(SHARES, COLOURS, strict=True):
        heights = [100 * each[share] for each in entries]
        bars = axes.bar(names, heights, bottom=bottom, label=share, color=colour)
        if share == "stored":
            axes.bar_label(bars, fmt="{:.1f}", label_type="center", color="white")
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_title(mix, fontsize="medium")
    axes.tick_params(axis="x", labelsize="small")


def _compared(result: dict[str, Any], mix: str) -> list[dict[str, Any]]:
    """The contiguous managers, and the paged one with the usual block size."""
    sizes = (None, result["parameters"]["block_size"])
    return [
        each
        for each in result["steady_state"]
        if each["mix"] == mix and each["block_size"] in sizes
    ]


def _memory(result: dict[str, Any]) -> str:
    found = result["parameters"]
    return (
        f"{found['memory_bytes'] / 2**30:g} GiB for {found['memory_model']} in {found['dtype']}: "
        f"{found['slots']:,} token slots"
    )


def _parameters(result: dict[str, Any]) -> list[str]:
    found = result["parameters"]
    per_token = (f"{name} {size // 1024} KiB" for name, size in found["bytes_per_token"].items())
    said = [
        "",
        f"{_memory(result)}, as on an A100-40GB; prompt + output at most {found['max_seq_len']:,}",
        f"keys and values of one token: {', '.join(per_token)}",
        f"seed {found['seed']}, {found['requests']:,} requests finish, the first fifth not counted",
    ]
    for name, mix in result["mixes"].items():
        parameters = ", ".join(f"{key} {value}" for key, value in mix["parameters"].items())
        means = ", ".join(f"{key} {value:g}" for key, value in mix["means"].items())
        said += [f"mix {name}:", f"  parameters: {parameters}", f"  means: {means}"]
    return said


def _steady_state(result: dict[str, Any]) -> list[str]:
    columns = (
        "manager", "utilization", *SHARES, "running", "preempted", "recomputed",
    )  # fmt: skip
    said = ["", "STEADY STATE. utilization: keys over room given out; shares: of all the memory."]
    for mix in result["mixes"]:
        rows = [
            (
                each["what"],
                *(f"{each[name]:.1%}" for name in ("utilization", *SHARES)),
                f"{each['mean_running']:.1f}",
                f"{each['preemptions']:.2f} x",
                f"{each['recomputed']:.1%}",
            )
            for each in _compared(result, mix)
        ]
        said += ["", f"mix {mix}", *table(columns, rows)]
    return [*said, "", *_bar(result)]


def _bar(result: dict[str, Any]) -> list[str]:
    found = _compared(result, list(result["mixes"])[-1])
    reserve, paged = found[0]["utilization"], found[-1]["utilization"]
    return [
        f"paged at least {PAPER_UTILIZATION:.1%} on the last mix: {paged:.1%}, "
        f"{'yes' if paged >= PAPER_UTILIZATION else 'NO'}; {found[0]['what']} under "
        f"{CONTIGUOUS_LIMIT:.0%}: {reserve:.1%}, {'yes' if reserve < CONTIGUOUS_LIMIT else 'NO'}",
        "arXiv 2309.06180 measured 20.4 % to 38.2 % of the memory in contiguous systems and 96.3 %",
        "in its paged one. First fit is kinder to the contiguous ones than the buddy allocation",
        "there. idle: too little for the next request, or the watermark.",
    ]


def _closed_form(result: dict[str, Any]) -> list[str]:
    paged = [each for each in result["steady_state"] if each["block_size"]]
    gaps = [abs(each["waste"] - each["closed_form_waste"]) for each in paged]
    columns = ("mix", "block", "waste", "closed form", "gap, points", "running", "recomputed")
    rows = [
        (
            each["mix"],
            str(each["block_size"]),
            f"{each['waste']:.2%}",
            f"{each['closed_form_waste']:.2%}",
            f"{100 * gap:.2f}",
            f"{each['mean_running']:.1f}",
            f"{each['recomputed']:.1%}",
        )
        for each, gap in zip(paged, gaps, strict=True)
    ]
    return [
        "",
        "PAGED WASTE, of the blocks given out, and the closed form: (T - 1) / 2 slots a sequence.",
        "",
        *table(columns, rows),
        "",
        f"all within {100 * AGREEMENT} points: {'yes' if max(gaps) <= AGREEMENT else 'NO'}",
    ]


def _sharing(result: dict[str, Any]) -> list[str]:
    return [
        "",
        f"SHARING, blocks of {result['parameters']['block_size']}. saved: of the blocks without "
        "sharing, over all steps; tokens and bytes: a request.",
        "",
        *_savings(result["sharing"], "closed form", "paper"),
        "",
        "Parallel samples share the prompt's full blocks. The mixes have the paper's mean lengths;",
        "its spread is not known. A wider spread of outputs (sigma 1 here) makes a running request",
        "longer than the mean one and so the prompt's share smaller: with sigma 0.5 for the",
        "outputs the savings are about half as large again on 19/58, a fifth larger on 161/338.",
        "Beams share all up to their common ancestor; `sure` is the share of steps that replace no",
        "beam. Scores drawn independently replace beams sooner than text does, so long outputs",
        "save more than in the paper unless nearly all steps are sure.",
    ]


def _common_prompt(result: dict[str, Any]) -> list[str]:
    found = result["parameters"]
    return [
        "",
        f"A COMMON PROMPT of {found['common_len']:,} tokens before those of "
        f"{found['common_requests']} requests of a mix, found through the prefix trie; all of them",
        "at once. tokens and bytes: of all requests.",
        "",
        *_savings(result["common_prompt"]),
    ]


def _savings(entries: list[dict[str, Any]], *more: str) -> list[str]:
    models = list(entries[0]["saved_bytes"])
    columns = ("mix", "what", "saved", *more, "tokens", *(f"{name}, MiB" for name in models))
    return table(columns, [_savings_row(each, bool(more)) for each in entries])


def _savings_row(entry: dict[str, Any], compared: bool) -> list[str]:
    sure = entry.get("sure")
    row = [entry["mix"], entry["what"] + (f", sure {sure:.0%}" if sure is not None else "")]
    row += [f"{entry['saved_share']:.1%}"]
    if compared:
        closed_form = entry["closed_form_share"]
        row += ["" if closed_form is None else f"{closed_form:.1%}"]
        row += [BEAM_BAND if sure is not None else BANDS["parallel", entry["mix"].split(",")[0]]]
    row += [f"{entry['saved_tokens']:,.0f}"]
    return row + [f"{size / 2**20:,.1f}" for size in entry["saved_bytes"].values()]
