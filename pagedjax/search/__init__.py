"""Searches above the engine: beams are requests that fork.

Imports `engine` and below.
"""
