"""Other engines: scripts that run in their own Python environments, and their callers."""
