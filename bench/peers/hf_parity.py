"""Log probabilities of given outputs by decode and by scoring, with Hugging Face transformers.

    PEER/bin/python bench/peers/hf_parity.py --gguf FILE --dtype bfloat16 --given GIVEN.json \\
        --json OUT.json

PEER is an environment with torch, transformers and gguf; nothing of pagedjax is imported. The given
file has {"prompts": [[id, ...], ...], "outputs": [[id, ...], ...]} with outputs of one length. The
model computes the log probability of each output token twice: by decode with a KV cache, one token
at a time in a left-padded batch, as `generate` does; and by one forward pass over prompt and
output, as a trainer does.
"""

import argparse
import json

import torch
import transformers
from hf_model import DTYPES, PAD_ID, environment, load
from peer_options import add_files, new_parser


def main() -> None:
    """Compute the log probabilities both ways and write the result."""
    args = parse_args()
    given = json.loads(args.given.read_text(encoding="utf-8"))
    prompts, outputs = given["prompts"], given["outputs"]
    if len(prompts) != len(outputs) or len(set(map(len, outputs))) != 1:
        raise ValueError("Every prompt needs an output, and all outputs must have the same length.")
    model = load(args.gguf, DTYPES[args.dtype])
    result = {
        "cached": cached(model, prompts, outputs),
        "full": [full(model, *pair) for pair in zip(prompts, outputs, strict=True)],
        **environment(),
    }
    args.json.write_text(json.dumps(result) + "\n", encoding="utf-8")


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = new_parser(__doc__, dtype="float32")
    add_files(parser, given="prompts and outputs")
    return parser.parse_args()


@torch.inference_mode()
def cached(
    model: transformers.PreTrainedModel, prompts: list[list[int]], outputs: list[list[int]]
) -> list[list[float]]:
    """Return the output tokens' log probabilities by decode with a KV cache."""
    width = max(map(len, prompts))
    inputs = torch.tensor([[PAD_ID] * (width - len(each)) + each for each in prompts])
    mask = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in prompts])
    chosen, columns, cache = torch.tensor(outputs), [], None
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    for step in range(chosen.shape[1]):
        result = model(
            inputs,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache, inputs = result.past_key_values, chosen[:, step : step + 1]
        columns.append(logprobs(result.logits[:, -1], inputs[:, 0]))
        mask = torch.cat([mask, torch.ones_like(inputs)], dim=1)
        positions = positions[:, -1:] + 1
    return torch.stack(columns, dim=1).tolist()


@torch.inference_mode()
def full(model: transformers.PreTrainedModel, prompt: list[int], output: list[int]) -> list[float]:
    """Return the output tokens' log probabilities by one forward pass, unpadded and uncached."""
    logits = model(torch.tensor([prompt + output]), use_cache=False).logits[0]
    return logprobs(logits[len(prompt) - 1 : -1], torch.tensor(output)).tolist()


def logprobs(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the log-softmax of `logits` [N, V] at `tokens` [N], computed in float32."""
    return logits.float().log_softmax(-1).gather(1, tokens[:, None])[:, 0]


if __name__ == "__main__":
    main()
