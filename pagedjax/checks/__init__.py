"""Checks of what users give, and how a command ends when something is wrong.

Imports the standard library alone.
"""
