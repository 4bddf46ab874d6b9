"""What one-byte KV pools cost: `python -m bench.kv_accuracy --model PATH [--json FILE]`.

Scores fixed texts with a float32 KV pool and with each other format, and prints how far the
log probabilities of the texts' tokens move, and their perplexity.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.report import command_line, header
from bench.report.report import right_aligned
from pagedjax import LLM, ModelConfig, load_checkpoint
from pagedjax.checks.one_line import exit_status
from pagedjax.layers.kv_cache import block_bytes
from pagedjax.text.encode import encode
from pagedjax.weights.params import Params

EXACT = "float32"
MEASURED = ("bfloat16", "int8", "fp8")
COLUMNS = ("KV pool", "bytes/token", "mean", "p99", "max", "perplexity", "change")
TEXTS = (
    """The lighthouse keeper kept two books. In the first he wrote what the sea did: the height of
the swell at six in the morning and at six in the evening, the direction of the wind, the ships
that passed and the flags they flew. In the second he wrote what he thought about it. The first
book was inspected every spring by a man from the harbour office, who counted the entries, signed
the last page and had a glass of something in the kitchen. Nobody ever asked to see the second.
When the light was made automatic, the first book went to the museum of the town, where it lies
open under glass at a day on which nothing happened. The second book he took with him. His
granddaughter found it forty years later between the tax returns and the instructions for a radio,
and read it in one night. On the same quiet day he had written: "Nothing again. I have come to
think that nothing is what the light is for." She had the sentence framed, and hung it in the hall
beside the barometer, which had not worked since the move.""",
    """A page table is an old idea. A program sees one long row of addresses, and the machine keeps
the memory behind them in pieces of equal size, wherever there is room; a table says which piece
stands behind which part of the row. Nothing has to be next to anything else, so no gap is ever too
small to be used, and two programs that begin in the same way can share the pieces in which they
agree until one of them writes. The same idea serves a language model. While it produces a text it
must remember a key and a value for every token that came before, in every layer, and these
memories grow at different speeds for different readers. If each request reserves the longest
memory that it might need, most of the reserved space stays empty; if the memory is cut into blocks
of sixteen tokens, at most fifteen places per request are wasted. What remains is the size of an
entry. Stored in two bytes a number, one token of a large model takes a third of a megabyte. Stored
in one byte, with one scale for each vector, it takes a little more than half of that, and twice as
many conversations fit on the same machine. The price is that every key and every value is rounded,
and the question is how much of the rounding can still be seen in the answer.""",
    """To make bread for four people, mix 500 grams of flour with 10 grams of salt and 5 grams of
dry yeast, and add 350 millilitres of water at about 25 degrees. Stir until no dry flour is left,
cover the bowl, and wait for half an hour. Then wet your hands, take the dough at one side, pull it
up and fold it over to the other; turn the bowl by a quarter and repeat this four times. Do the
same again after thirty minutes, and once more thirty minutes later. By now the dough is smooth and
holds its shape. Let it rise until it has doubled, which takes between one and two hours, depending
on the temperature of the kitchen. Heat the oven to 240 degrees with an iron pot inside. Shape a
ball on a floured board, let it rest for twenty minutes, cut a cross into the top, and put it into
the hot pot. Bake for 25 minutes with the lid and for 15 to 20 minutes without it. The crust should
be dark brown, and the loaf should sound hollow when you knock on the bottom. Leave it on a rack
for at least an hour before you cut it: inside, the baking goes on for a while after the oven is
off.""",
    """def merge(left, right):
    # Both lists are sorted; the result is sorted too, and equal items keep their order.
    result = []
    i = j = 0
    while i < len(left) and j < len(right):
        if right[j] < left[i]:
            result.append(right[j])
            j += 1
        else:
            result.append(left[i])
            i += 1
    return result + left[i:] + right[j:]


def merge_sort(items):
    if len(items) < 2:
        return list(items)
    middle = len(items) // 2
    return merge(merge_sort(items[:middle]), merge_sort(items[middle:]))


for example in ([], [1], [2, 1], [3, 1, 2], [5, 4, 3, 2, 1], [1, 1, 1]):
    assert merge_sort(example) == sorted(example)
""",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0, or non-zero after one line on stderr."""
    parser = argparse.ArgumentParser(prog="python -m bench.kv_accuracy", description=__doc__)
    command_line.add_model(parser)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--debug", action="store_true")
    options = parser.parse_args(arguments)
    return exit_status(partial(_run, options), options.debug)


def _run(options: argparse.Namespace) -> None:
    command_line.check(options, ())
    config, params, tokenizer = load_checkpoint(options.model, "float32")
    token_lists = [encode(tokenizer, text) for text in TEXTS]
    exact = _logprobs(config, params, token_lists, EXACT)
    pools = [_entry(config, EXACT, exact, exact)]
    for dtype in MEASURED:
        found = _logprobs(config, params, token_lists, dtype)
        pools.append(_entry(config, dtype, found, exact))
    described = header.describe()
    counts = {"texts": len(TEXTS), "tokens": sum(map(len, token_lists)), "scored": exact.size}
    print("\n".join(header.lines(described)))
    print("{texts} texts, {tokens:,} tokens, {scored:,} of them scored".format(**counts))
    print("\n".join(_table(pools)))
    if options.json:
        model = options.model.name
        result = {"header": described, "model": model, "dtype": "float32", **counts, "pools": pools}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def _logprobs(
    config: ModelConfig, params: Params, token_lists: Sequence[Sequence[int]], dtype: str
) -> np.ndarray:  # [all tokens but the first of each list]
    """Log probabilities of all lists' tokens, by an engine with such a pool."""
    longest = max(map(len, token_lists)) + 1
    llm = LLM.from_params(
        config, params, max_model_len=longest, max_num_seqs=len(token_lists),
        max_num_batched_tokens=512, num_blocks=len(token_lists) * (longest // 16 + 1),
        kv_cache_dtype=dtype,
    )  # fmt: skip
    return np.concatenate(llm.compute_logprobs(token_lists)).astype(np.float64)


def _entry(config: ModelConfig, dtype: str, found: np.ndarray, exact: np.ndarray) -> dict[str, Any]:
    """How far the log probabilities are from the exact ones, in nats, and what they amount to."""
    moved = np.abs(found - exact)
    return {
        "kv_cache_dtype": dtype,
        "bytes_per_token": block_bytes(config, 1, dtype),
        "mean_abs_difference": float(moved.mean()),
        "p99_abs_difference": float(np.quantile(moved, 0.99)),
        "max_abs_difference": float(moved.max()),
        "perplexity": float(np.exp(-found.mean())),
        "perplexity_change": float(np.expm1(exact.mean() - found.mean())),
    }


def _table(pools: Sequence[dict[str, Any]]) -> list[str]:
    rows = [COLUMNS]
    for each in pools:
        name, size, mean, p99, most, perplexity, change = each.values()
        rows.append(
            (name, f"{size:,}", f"{mean:.2e}", f"{p99:.2e}", f"{most:.2e}", f"{perplexity:.4f}",
             f"{change:+.4%}")
        )  # fmt: skip
    return right_aligned(rows)


if __name__ == "__main__":
    sys.exit(main())
