"""The compiled step: plans to arrays, forward, draw, score, and the programs that run them.

Imports every folder below it.
"""
