"""Attention: time, bytes and bandwidth, ours beside others."""
