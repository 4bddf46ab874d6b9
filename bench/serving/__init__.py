"""Parts of the commands that serve requests."""
