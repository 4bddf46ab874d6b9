"""From logits to tokens: penalties, filters, the draw, log probabilities, user functions.

Imports jax alone, and its own files.
"""
