"""The architecture of a model: its shape and rotary frequencies, read from a `config.json`.

Imports `checks` and the standard library.
"""
