"""vLLM's CPU build, given all requests at once, as a peer of the benchmark.

    PEER/bin/python bench/peers/vllm_offline.py --gguf FILE --dtype bfloat16 --rows 64

PEER is an environment with vllm, torch, transformers and gguf; nothing of pagedjax is imported. A
task is {"prompts": [[id, ...], ...], "output_lens": [n, ...]}; see `exchange`. Starting takes a
minute or two, most of it compiling.
"""

from functools import partial
from typing import Any

from exchange import answer_tasks, timed
from vllm_engine import WARM_PROMPTS, WARM_TOKENS, EngineFolder, environment, greedy


def main() -> None:
    """Create the engine and answer tasks."""
    folder = EngineFolder(__doc__)

    def begin() -> tuple:
        from vllm import LLM

        llm = LLM(**folder.options())
        generate(llm, WARM_PROMPTS, [WARM_TOKENS] * len(WARM_PROMPTS))
        answer = timed(partial(generate, llm))
        return lambda task: folder.settled(answer(task)), environment()

    try:
        answer_tasks(begin)
    finally:
        folder.remove()


def generate(llm: Any, prompts: list[list[int]], output_lens: list[int]) -> list[list[int]]:
    """Return greedy ids of every request."""
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        [greedy(length) for length in output_lens],
        use_tqdm=False,
    )
    return [list(output.outputs[0].token_ids) for output in outputs]


# The engine's worker process imports this file again.
if __name__ == "__main__":
    main()
