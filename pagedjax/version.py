"""The version, where both the package and the build can read it."""

__version__ = "0.1.0"
