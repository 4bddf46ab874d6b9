"""Hugging Face transformers with static batching, as a peer of the benchmark.

    PEER/bin/python bench/peers/hf_static.py --gguf FILE --dtype bfloat16 --batch 64 \\
        --workload WORKLOAD.json --repeats 1 --json OUT.json

PEER is an environment with torch, transformers and gguf; nothing of pagedjax is imported. The
workload is {"prompts": [[id, ...], ...], "output_lens": [n, ...]}. Requests are batched in their
order, padded on the left, and a batch decodes greedily until its longest output is done. Only the
tokens that were asked for count, so the steps that short requests sit through are lost: the price
of static batching.
"""

import argparse
import json
import platform
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
# Masked everywhere, so any id of the vocabulary does.
PAD_ID = 0


def main() -> None:
    """Time the workload and write the result."""
    args = parse_args()
    workload = json.loads(args.workload.read_text(encoding="utf-8"))
    prompts, output_lens = workload["prompts"], workload["output_lens"]
    check_workload(prompts, output_lens)
    model = load(args.gguf, DTYPES[args.dtype])
    generate_batch(model, prompts[: args.batch], 4)  # warms up the allocator and the kernels
    seconds, outputs = [], []
    for repeat in range(args.repeats):
        start = time.perf_counter()
        outputs = run(model, prompts, output_lens, args.batch)
        seconds.append(time.perf_counter() - start)
        print(f"repeat {repeat}: {sum(output_lens) / seconds[-1]:.1f} tokens/s")
    result = describe(args, sum(output_lens), seconds) | {"outputs": outputs}
    args.json.write_text(json.dumps(result) + "\n", encoding="utf-8")


def parse_args() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=Path, required=True, help="the model")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16")
    parser.add_argument("--batch", type=int, default=64, help="requests per batch")
    parser.add_argument("--workload", type=Path, required=True, help="prompts and output lengths")
    parser.add_argument("--repeats", type=int, default=1, help="timed runs of the whole workload")
    parser.add_argument("--json", type=Path, required=True, help="where the result goes")
    args = parser.parse_args()
    if args.batch < 1 or args.repeats < 1:
        parser.error(f"--batch {args.batch} and --repeats {args.repeats} must be at least 1")
    return args


def check_workload(prompts: list[list[int]], output_lens: list[int]) -> None:
    """Refuse a workload that this script would run wrongly."""
    if len(prompts) != len(output_lens):
        raise ValueError(f"{len(prompts)} prompts, but {len(output_lens)} output lengths.")
    if not prompts or not all(prompts) or min(output_lens) < 1:
        raise ValueError("Every request needs a prompt and an output of at least one token.")


def load(path: Path, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """Load the GGUF at `path` in float32, then cast, so that it is dequantised exactly once."""
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    # Without an end token generate neither stops early nor forbids the id, so greedy ids compare
    # with those of an engine that ignores EOS; min_new_tokens would forbid it instead.
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = PAD_ID
    return model.to(dtype).eval()


def run(
    model: transformers.PreTrainedModel,
    prompts: list[list[int]],
    output_lens: list[int],
    batch: int,
) -> list[list[int]]:
    """Return the output ids of every request, each of the length asked for."""
    outputs = []
    for start in range(0, len(prompts), batch):
        wanted = output_lens[start : start + batch]
        rows = generate_batch(model, prompts[start : start + batch], max(wanted))
        outputs += [row[:length] for row, length in zip(rows, wanted, strict=True)]
    return outputs


@torch.inference_mode()
def generate_batch(
    model: transformers.PreTrainedModel, prompts: list[list[int]], new_tokens: int
) -> list[list[int]]:
    """Return `new_tokens` greedy ids for each prompt, all decoded together."""
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


def describe(args: argparse.Namespace, tokens: int, seconds: list[float]) -> dict:
    """Return the numbers of the run and what they were measured on."""
    return {
        "peer": "transformers, static batching",
        "model": args.gguf.name,
        "dtype": args.dtype,
        "batch": args.batch,
        "tokens": tokens,
        "seconds": [round(value, 4) for value in seconds],
        "tok_s": [round(tokens / value, 2) for value in seconds],
        **environment(),
    }


def environment() -> dict:
    """Return what a peer's run was made with."""
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }


if __name__ == "__main__":
    main()
