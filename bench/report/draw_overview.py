"""Draw the overview of the README: `python -m bench.report.draw_overview`."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

TARGET = Path(__file__).parents[2] / "docs" / "overview.svg"
WIDTH, HEIGHT = 880, 440
HOST, DEVICE, SHARED = "#e8f0fe", "#e6f4ea", "#fde9c8"
BLOCK, LINE = 44, "#3c4043"
TABLES = (("request A", (0, 1, 2)), ("request B", (0, 1, 5)), ("request C", (7, 3)))
COLOURS = {0: SHARED, 1: SHARED, 2: "#c6dafc", 5: "#b7e1cd", 7: "#f4c7c3", 3: "#f4c7c3"}


def box(x: int, y: int, width: int, height: int, fill: str) -> str:
    """Return a rectangle with rounded corners."""
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" '
        f'stroke="{LINE}"/>'
    )


def text(x: int, y: int, words: str, size: int = 13, weight: str = "normal") -> str:
    """Return words centred at x."""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="middle" fill="#202124">{escape(words)}</text>'
    )


def arrow(x: int, y: int, to_x: int, to_y: int) -> str:
    """Return a straight line with an arrow head at its end."""
    return (
        f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="{LINE}" stroke-width="1.5" '
        'marker-end="url(#head)"/>'
    )


def labelled(x: int, y: int, width: int, title: str, detail: str, fill: str) -> list[str]:
    """Return a box with a title and one line below it."""
    middle = x + width // 2
    return [
        box(x, y, width, 56, fill),
        text(middle, y + 24, title, weight="bold"),
        text(middle, y + 43, detail, 11),
    ]


def host_loop() -> list[str]:
    """Draw the parts of a step on the host, from the request to the text."""
    steps = (
        ("Intake", "tokenize, check"),
        ("Scheduler", "plan rows and blocks"),
        ("Packer", "plan to padded arrays"),
        ("Runner", "dispatch, do not wait"),
        ("Commit", "append tokens, text"),
    )
    drawn = [text(90, 30, "Host (Python)", 15, "bold")]
    for number, (title, detail) in enumerate(steps):
        x = 20 + 170 * number
        drawn += labelled(x, 45, 150, title, detail, HOST)
        if number:
            drawn.append(arrow(x - 20, 73, x - 2, 73))
    back = '<path d="M 775 101 V 122 H 265 V 104" fill="none" stroke="{}" stroke-width="1.5" {}/>'
    return [*drawn, back.format(LINE, 'marker-end="url(#head)"'), text(520, 138, "next step", 11)]


def block_tables() -> list[str]:
    """Draw one row of block numbers for each request."""
    drawn = [text(140, 178, "Block tables", 15, "bold")]
    for row, (name, blocks) in enumerate(TABLES):
        y = 192 + 54 * row
        drawn.append(text(58, y + 27, name))
        for column, block in enumerate(blocks):
            x = 110 + BLOCK * column
            drawn += [box(x, y, BLOCK, BLOCK, COLOURS[block]), text(x + 22, y + 27, str(block))]
    return drawn


def pool() -> list[str]:
    """Draw the blocks of the pool in two rows of four."""
    drawn = [text(420, 178, "Paged KV pool", 15, "bold")]
    for block in range(8):
        x, y = 332 + BLOCK * (block % 4), 205 + BLOCK * (block // 4)
        fill = COLOURS.get(block, "#ffffff")
        drawn += [box(x, y, BLOCK, BLOCK, fill), text(x + 22, y + 27, str(block))]
    return [
        *drawn,
        text(420, 316, "blocks 0 and 1: a prompt's prefix, stored once", 11),
        text(420, 333, "white: free", 11),
        arrow(250, 250, 326, 250),
    ]


def kernels() -> list[str]:
    """Draw the parts of a step on the device."""
    drawn = [text(720, 178, "Device (JAX)", 15, "bold")]
    parts = (
        ("forward: layers", "products, rope, write keys", DEVICE),
        ("paged attention", "XLA, Pallas Triton, Mosaic GPU", DEVICE),
        ("sample: head and draw", "penalties, filters, seeds", DEVICE),
    )
    for number, (title, detail, fill) in enumerate(parts):
        y = 192 + 76 * number
        drawn += labelled(600, y, 240, title, detail, fill)
        if number:
            drawn.append(arrow(720, y - 20, 720, y - 2))
    return [*drawn, arrow(510, 250, 597, 285), arrow(690, 101, 690, 189)]


def overview() -> str:
    """Return the whole picture as SVG."""
    head = (
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" '
        f'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{LINE}"/></marker></defs>'
    )
    caption = "The host plans and packs step n+1 while the device computes step n."
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        head,
        *host_loop(),
        *block_tables(),
        *pool(),
        *kernels(),
        text(WIDTH // 2, HEIGHT - 14, caption),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(overview(), encoding="utf-8")
