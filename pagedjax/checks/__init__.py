"""Validation of user input, error reporting of commands, and a fair lock.

Imports only the standard library.
"""
