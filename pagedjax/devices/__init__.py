"""The devices an engine runs on: its mesh, the entry of host calls, CPU features.

Imports jax and `checks`.
"""
