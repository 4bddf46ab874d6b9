"""Parts of the commands that compare log probabilities."""
