"""The devices an engine runs on: its mesh, and facts about the CPU.

Imports jax.
"""
