"""The params tree: one rule per leaf, checks, placement, and the converted folder on disk.

Imports `devices`, `architecture` and jax.
"""
