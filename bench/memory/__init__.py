"""Benchmark of KV memory: waste, and blocks saved by sharing."""
