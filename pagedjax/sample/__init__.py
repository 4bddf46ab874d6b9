"""Sampling: penalties, filters, the random draw, log probabilities, user functions.

Imports only jax and files of this folder.
"""
