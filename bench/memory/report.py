"""The result of `bench.memory` as tables and as a chart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.report.bar_chart import check
from bench.report.report import table

SHARES = ("stored", "reserved", "internal", "external", "idle")
COLOURS = ("tab:blue", "tab:cyan", "tab:red", "tab:orange", "lightgrey")
# Savings that arXiv 2309.06180 measured, from widths of 2 to 6.
BANDS = {"19/58": "6-10 %", "161/338": "16-30 %"}  # of parallel sampling
BEAM_BAND = "37-66 %"
PAPER_UTILIZATION, CONTIGUOUS_LIMIT, AGREEMENT = 0.963, 0.40, 0.005


def lines(result: dict[str, Any]) -> list[str]:
    """Format the result as tables with headings and remarks."""
    return [
        *_parameters(result),
        *_steady_state(result),
        *_closed_form(result),
        *_sharing(result),
        *_common_prompt(result),
    ]


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the use of the memory, with one panel per mix, and write it to `path`."""
    check()
    # The canvas is chosen for this figure, not for the process, and needs no display.
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
    """Return handles and labels in the order of the stacked bars, from the top."""
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
    """Return the entries of the contiguous managers, and of the default block size."""
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
        f"seed {found['seed']}, {found['requests']:,} finished requests, without the first fifth",
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
    said = [
        "",
        "STEADY STATE. utilization: keys over allocated slots; shares: of the whole memory.",
    ]
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
        "in its paged one. First fit favours the contiguous ones over the buddy allocation there.",
        "idle: free, but too small for the next request, or the watermark.",
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
        "PAGED WASTE of the allocated blocks, and the closed form: (T - 1) / 2 slots per sequence.",
        "",
        *table(columns, rows),
        "",
        f"all within {100 * AGREEMENT} points: {'yes' if max(gaps) <= AGREEMENT else 'NO'}",
    ]


def _sharing(result: dict[str, Any]) -> list[str]:
    found = result["parameters"]
    parallel = [each for each in result["sharing"] if each["sure"] is None]
    beams = [each for each in result["sharing"] if each["sure"] is not None]
    narrow = f"sigma {found['narrow_sigma']}"
    return [
        "",
        f"SHARING, blocks of {found['block_size']}. saved: of the blocks without sharing, over all "
        "steps; tokens and bytes: per request. paper: arXiv 2309.06180, width 2 to 6.",
        "",
        *_savings(parallel, ("closed form", "whole mix", narrow, "paper"), _parallel_cells),
        "",
        "Samples share the full blocks of the prompt. closed form: for the same requests; whole",
        "mix: for the whole distribution; they differ by the chance of long requests. The mixes",
        "have the mean lengths of the paper, which gives no spread. A wider spread of outputs",
        "(sigma 1 here) makes running requests longer and the prompt's share smaller.",
        f"{narrow}: the same means with this spread of outputs.",
        "",
        *_savings(beams, ("paper",), lambda beam: [BEAM_BAND]),
        "",
        f"Beams: Dirichlet({found['beam_concentration']:g}) chances of {found['beam_tokens']} "
        "tokens, drawn independently for each beam; the best scores survive.",
        "Beams share all blocks up to their common ancestor. sure: the share of steps that replace",
        "no beam, an assumption, because no model runs. Independent scores replace beams sooner",
        "than text does, where beams differ little: unless nearly all steps are sure, long outputs",
        "save more here than in the paper.",
    ]


def _parallel_cells(entry: dict[str, Any]) -> list[str]:
    names = ("closed_form_share", "mix_share", "narrow_mix_share")
    return [*(f"{entry[name]:.1%}" for name in names), BANDS[entry["mix"].split(",")[0]]]


def _common_prompt(result: dict[str, Any]) -> list[str]:
    found = result["parameters"]
    return [
        "",
        f"A COMMON PROMPT of {found['common_len']:,} tokens before those of "
        f"{found['common_requests']} requests of a mix, found through the prefix trie; all of them",
        "run at once. tokens and bytes: of all requests.",
        "",
        *_savings(result["common_prompt"]),
    ]


def _savings(
    entries: list[dict[str, Any]],
    columns: Sequence[str] = (),
    cells: Callable[[dict[str, Any]], list[str]] = lambda entry: [],
) -> list[str]:
    """Format a table of savings; `columns` and `cells` come after the measured share."""
    models = [f"{name}, MiB" for name in entries[0]["saved_bytes"]]
    rows = [
        [
            f"{each['mix']}: {_scenario(each)}",
            f"{each['saved_share']:.1%}",
            *cells(each),
            f"{each['saved_tokens']:,.0f}",
            *(f"{size / 2**20:,.1f}" for size in each["saved_bytes"].values()),
        ]
        for each in entries
    ]
    return table(("mix and scenario", "saved", *columns, "tokens", *models), rows)


def _scenario(entry: dict[str, Any]) -> str:
    sure = entry.get("sure")
    return entry["what"] if sure is None else f"{entry['what']}, sure {sure:.0%}"
