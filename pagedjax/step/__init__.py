"""The compiled step: batching of plans into arrays, forward, draw, score, compiled programs.

May import every folder below it.
"""
