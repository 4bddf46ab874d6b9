"""One completion by Hugging Face transformers in a fresh process, as a peer of `bench.latency`.

    PEER/bin/python bench/peers/hf_cold.py --gguf FILE --dtype bfloat16 --prompt TEXT

PEER is an environment with torch, transformers and gguf; nothing of pagedjax is imported. The text
of each token is printed immediately; the parent process times the first byte.
"""

from typing import Any

import torch
from hf_model import DTYPES, load
from peer_options import new_parser
from transformers import AutoTokenizer
from transformers.generation.streamers import BaseStreamer


class Printer(BaseStreamer):
    """Prints each new token, but not the prompt, which it receives first."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.is_prompt = tokenizer, True

    def put(self, value: torch.Tensor) -> None:
        """Receive the prompt's ids, then the id of each token."""
        if not self.is_prompt:
            print(self.tokenizer.decode(value.reshape(-1)), end="", flush=True)
        self.is_prompt = False

    def end(self) -> None:
        """End the line."""
        print()


def main() -> None:
    """Complete the prompt greedily."""
    parser = new_parser(__doc__, dtype="bfloat16")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--max-tokens", type=int, default=8)
    args = parser.parse_args()
    model = load(args.gguf, DTYPES[args.dtype])
    tokenizer = AutoTokenizer.from_pretrained(args.gguf.parent, gguf_file=args.gguf.name)
    inputs = tokenizer(args.prompt, return_tensors="pt")
    with torch.inference_mode():
        model.generate(
            inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=args.max_tokens,
            do_sample=False,
            streamer=Printer(tokenizer),
        )


if __name__ == "__main__":
    main()
