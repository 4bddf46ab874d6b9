"""Time a plain forward pass of Hugging Face transformers that scores given token lists.

    PEER/bin/python bench/peers/hf_scoring.py --gguf FILE --dtype float32 --batch 64 \\
        --given GIVEN.json --json OUT.json

PEER is an environment with torch, transformers and gguf; nothing of pagedjax is imported. The given
file has {"lists": [[id, ...], ...]}. Lists are batched in order and padded on the right to the
longest of all. Each batch takes one forward pass, a log-softmax over the vocabulary, and a gather,
as in a trainer.
"""

import argparse
import json
import time

import torch
import transformers
from hf_model import DTYPES, PAD_ID, environment, load
from peer_options import add_files, new_parser

WARM_LISTS = 2


def main() -> None:
    """Time one pass over the lists and write the result."""
    args = parse_args()
    lists = json.loads(args.given.read_text(encoding="utf-8"))["lists"]
    model = load(args.gguf, DTYPES[args.dtype])
    width = max(map(len, lists))
    score(model, lists[:WARM_LISTS], width)  # warms up the allocator and the kernels
    start, cpu = time.perf_counter(), time.process_time()
    logprobs = []
    for first in range(0, len(lists), args.batch):
        logprobs += score(model, lists[first : first + args.batch], width)
    result = {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": round(time.process_time() - cpu, 4),
        "logprobs": logprobs,
        **environment(),
    }
    args.json.write_text(json.dumps(result) + "\n", encoding="utf-8")


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = new_parser(__doc__, dtype="float32")
    parser.add_argument("--batch", type=int, default=64, help="lists per forward pass")
    add_files(parser, given="the lists")
    args = parser.parse_args()
    if args.batch < 1:
        parser.error(f"--batch {args.batch} must be at least 1")
    return args


@torch.inference_mode()
def score(
    model: transformers.PreTrainedModel, lists: list[list[int]], width: int
) -> list[list[float]]:
    """Return the log probability of every token but the first of each list."""
    ids = torch.tensor([each + [PAD_ID] * (width - len(each)) for each in lists])
    mask = torch.tensor([[1] * len(each) + [0] * (width - len(each)) for each in lists])
    logits = model(ids, attention_mask=mask, use_cache=False).logits[:, :-1]
    found = logits.float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return [row[: len(each) - 1].tolist() for row, each in zip(found, lists, strict=True)]


if __name__ == "__main__":
    main()
