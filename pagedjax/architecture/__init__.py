"""What a model looks like: its shape, its rotary frequencies, read from a `config.json`.

Imports `checks` and the standard library.
"""
