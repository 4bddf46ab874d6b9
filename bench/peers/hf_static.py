"""Hugging Face transformers with static batching, as a peer of the benchmark.

    PEER/bin/python bench/peers/hf_static.py --gguf FILE --dtype bfloat16 --rows 64

PEER is an environment with torch, transformers and gguf; nothing of pagedjax is imported. A task
is {"prompts": [[id, ...], ...], "output_lens": [n, ...]}; see `exchange`. Requests are batched in
order and padded on the left, and a batch of `--rows` decodes greedily until its longest output is
complete. Only requested tokens are counted, so that further steps of short requests are wasted, as
is usual for static batching.
"""

from functools import partial

import torch
import transformers
from exchange import answer_tasks, arguments, timed
from hf_model import DTYPES, PAD_ID, environment, load

WARM_PROMPTS, WARM_TOKENS = [[1] * 16] * 2, 4


def main() -> None:
    """Load the model and answer tasks."""
    args = arguments(__doc__)

    def begin() -> tuple:
        model = load(args.gguf, DTYPES[args.dtype])
        generate_batch(model, WARM_PROMPTS, WARM_TOKENS)  # warms up the allocator and the kernels
        return timed(partial(generate, model, args.rows)), environment()

    answer_tasks(begin)


def generate(
    model: transformers.PreTrainedModel,
    rows: int,
    prompts: list[list[int]],
    output_lens: list[int],
) -> list[list[int]]:
    """Return the output ids of every request, each of the requested length."""
    outputs = []
    for first in range(0, len(prompts), rows):
        wanted = output_lens[first : first + rows]
        made = generate_batch(model, prompts[first : first + rows], max(wanted))
        outputs += [row[:length] for row, length in zip(made, wanted, strict=True)]
    return outputs


@torch.inference_mode()
def generate_batch(
    model: transformers.PreTrainedModel, prompts: list[list[int]], new_tokens: int
) -> list[list[int]]:
    """Return `new_tokens` greedy ids for each prompt, decoded in one batch."""
    width = max(map(len, prompts))
    padded = [[PAD_ID] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    ids = model.generate(
        torch.tensor(padded),
        attention_mask=torch.tensor(mask),
        max_new_tokens=new_tokens,
        do_sample=False,
    )
    if ids.shape[1] != width + new_tokens:
        raise RuntimeError(f"generate gave {ids.shape[1] - width} tokens, not {new_tokens}.")
    return ids[:, width:].tolist()


if __name__ == "__main__":
    main()
