"""Benchmarks, each a command: `python -m bench.NAME`."""
