"""From prompts to checked requests: generation, scoring, forks and rollbacks.

Imports `schedule`, `text`, `config`, `devices` and, for scores, `step`.
"""
