"""Write the figures and plots of the README and of docs/ from the JSON files in bench/results.

python -m bench.report.write_benchmarks
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.report import draw_results, generated

ROOT = Path(__file__).parents[2]
PAGES = tuple(ROOT / name for name in ("README.md", "docs/benchmarks.md", "docs/kernels.md"))


def outputs() -> dict[Path, str]:
    """Return the text that each page and plot should have."""
    pages = {path: generated.filled(path.read_text(encoding="utf-8")) for path in PAGES}
    return pages | draw_results.plots()


def main() -> int:
    """Write each page and plot that has changed, and print its path."""
    for path, text in outputs().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
