"""Hugging Face transformers with its own continuous batching, as a peer of the benchmark.

    PEER/bin/python bench/peers/hf_continuous.py --gguf FILE --dtype bfloat16 --rows 64

PEER is an environment with torch, transformers 5 and gguf; nothing of pagedjax is imported. A task
is {"prompts": [[id, ...], ...], "output_lens": [n, ...]}; see `exchange`. `generate_batch` takes
one output length for all requests, so this script uses its manager, which takes one for each.

On a CPU transformers has no paged kernel. It gathers the keys of all requests from the pages and
passes them to SDPA together, with a mask that hides the other requests' keys. The attention of a
step costs (queries of the step) x (keys of all its requests), so more rows may be slower than
fewer. The pool holds every running request at its longest, so that no request waits for memory.
Prefix sharing is off, because the prompts share no prefix.
"""

from functools import partial
from typing import Any

from exchange import answer_tasks, arguments, timed
from hf_model import DTYPES, environment, load
from transformers import ContinuousBatchingConfig

PAGE_SIZE = 256  # the default
# Enough for a decode step of all rows and a prompt; more queries would cost more masked keys.
BATCH_TOKENS = 512
WARM_PROMPTS, WARM_TOKENS = [[1] * 16] * 2, 4
POLL_SECONDS = 1.0


def main() -> None:
    """Load the model, start its manager, and answer tasks."""
    args = arguments(__doc__)
    started: list[Any] = []

    def begin() -> tuple:
        model = load(args.gguf, DTYPES[args.dtype])
        model.set_attn_implementation("sdpa")
        manager = model.init_continuous_batching(
            generation_config=model.generation_config,
            continuous_batching_config=pool(args.rows, args.max_model_len),
        )
        manager.start()
        started.append(manager)
        generate(manager, WARM_PROMPTS, [WARM_TOKENS] * len(WARM_PROMPTS))
        return timed(partial(generate, manager)), environment()

    try:
        answer_tasks(begin)
    finally:
        # The manager's thread is not a daemon thread, and would keep the process alive.
        for manager in started:
            manager.stop(block=True, hard_stop=True)


def pool(rows: int, max_model_len: int) -> ContinuousBatchingConfig:
    """Return a configuration in which `rows` requests of `max_model_len` tokens run together."""
    return ContinuousBatchingConfig(
        page_size=PAGE_SIZE,
        # One more per row, because the manager allocates ahead of need.
        num_blocks=rows * (-(-max_model_len // PAGE_SIZE) + 1),
        max_batch_tokens=max(BATCH_TOKENS, 2 * rows),
        max_requests_per_batch=rows,
        allow_block_sharing=False,
        auto_switch_to_flash=False,
    )


def generate(manager: Any, prompts: list[list[int]], output_lens: list[int]) -> list[list[int]]:
    """Add all requests at once and return their greedy output ids."""
    ids = [
        manager.add_request(prompt, max_new_tokens=length)
        for prompt, length in zip(prompts, output_lens, strict=True)
    ]
    outputs: dict[str, list[int]] = {}
    while len(outputs) < len(ids):
        result = manager.get_result(timeout=POLL_SECONDS)
        if result is None and not manager.is_running():
            raise RuntimeError("The thread of the continuous batching manager has ended.")
        if result is None or not result.is_finished():
            continue
        if result.error is not None:
            raise RuntimeError(f"{result.request_id} failed: {result.error}")
        outputs[result.request_id] = result.generated_tokens
    return [outputs[each] for each in ids]


if __name__ == "__main__":
    main()
