"""Benchmarks; each is a command, `python -m bench.NAME`."""
