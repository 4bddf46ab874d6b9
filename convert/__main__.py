"""Command line: `python -m pagedjax.convert SRC DST [--dtype D] [--verify] [--overwrite]`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from functools import partial
from types import FrameType
from typing import NoReturn

from pagedjax.checks.one_line import exit_status
from pagedjax.config import DTYPES

from .converter import convert


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the conversion; return 0, or 1 after printing one line to stderr."""
    options = _parser().parse_args(arguments)
    return exit_status(partial(_convert, options), options.debug)


def _convert(options: argparse.Namespace) -> None:
    convert(
        options.src,
        options.dst,
        dtype=options.dtype,
        overwrite=options.overwrite,
        verify=options.verify,
        # A progress bar would clutter a log file.
        progress=sys.stderr.isatty(),
    )
    print(f"{options.dst} is ready")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pagedjax.convert",
        description="Convert a Hugging Face folder (safetensors) or a .gguf file for pagedjax.",
    )
    parser.add_argument("src", metavar="SRC", help="Hugging Face folder or .gguf file")
    parser.add_argument("dst", metavar="DST", help="folder to write")
    parser.add_argument("--dtype", default="auto", help=f"params dtype: {', '.join(DTYPES)}")
    parser.add_argument("--verify", action="store_true", help="read back and compare bit by bit")
    parser.add_argument("--overwrite", action="store_true", help="replace the folder DST")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _end(signum: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + signum)  # an exception, so that the half-written folder is removed


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(main())
