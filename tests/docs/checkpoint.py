"""A tiny random LLaMA checkpoint with a tokenizer and a chat template, for documentation's code."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.support import tiny_models

CONTEXT = 2048  # the longest that a page asks for
CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def write(folder: Path) -> None:
    """Write a Hugging Face folder whose tokens are the bytes of the text."""
    tiny_models.write_hf_folder("base", folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"max_position_embeddings": CONTEXT}
    (folder / "config.json").write_text(json.dumps(config))
    _tokenizer(config["vocab_size"]).save_pretrained(folder)


def _tokenizer(size: int) -> PreTrainedTokenizerFast:
    """The model has fewer ids than there are bytes, so it gets ASCII and a few others."""
    space, newline = "\u0120", "\u010a"  # as the byte-level alphabet writes them
    alphabet = [space, newline, *sorted({*pre_tokenizers.ByteLevel.alphabet()} - {space, newline})]
    pieces = ["<unk>", "<s>", "</s>", *alphabet][:size]
    ids = {piece: number for number, piece in enumerate(pieces)}
    core = Tokenizer(models.BPE(vocab=ids, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", bos_token="<s>", eos_token="</s>",
        chat_template=CHAT,
    )  # fmt: skip
