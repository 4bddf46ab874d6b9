"""From a prompt to a checked request: everything that can be refused is refused here.

Imports `schedule`, `text`, `config`.
"""
