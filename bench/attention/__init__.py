"""Benchmark of attention kernels: time, bytes and bandwidth."""
