"""Options that the peer scripts share; imports the standard library only."""

import argparse
from pathlib import Path

DTYPES = ("bfloat16", "float32")


def new_parser(doc: str, dtype: str) -> argparse.ArgumentParser:
    """Return a parser with `--gguf` and `--dtype`, whose default is `dtype`."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--gguf", type=Path, required=True, help="the model")
    parser.add_argument("--dtype", choices=DTYPES, default=dtype)
    return parser


def add_files(parser: argparse.ArgumentParser, given: str) -> None:
    """Add `--given`, the input file, and `--json`, the output file."""
    parser.add_argument("--given", type=Path, required=True, help=given)
    parser.add_argument("--json", type=Path, required=True, help="where to write the result")
