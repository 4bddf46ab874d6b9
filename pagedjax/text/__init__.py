"""Text to token ids, token ids to text, and the outputs that users read.

Imports `schedule` and below; the tokenizer is the user's object.
"""
