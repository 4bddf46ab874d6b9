"""Stream the answers to four concurrent questions: `python examples/demo.py MODEL`."""

from __future__ import annotations

import sys
import time

from pagedjax import LLM, EngineStats, RequestOutput, SamplingParams

QUESTIONS = (
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue.",
    "Write a haiku about the sea.",
    "Give me three tips for learning a new language.",
)
WIDTH = 88


class Lines:
    """Prints streamed text line by line, each line prefixed with its request's number."""

    def __init__(self) -> None:
        self._pending = dict.fromkeys(map(str, range(len(QUESTIONS))), "")

    def show(self, output: RequestOutput) -> None:
        """Print the complete lines: up to a line break, of full width, or at the answer's end."""
        name = output.request_id
        text = self._pending[name] + output.outputs[0].delta_text
        while "\n" in text or len(text) > WIDTH:
            cut = text.find("\n", 0, WIDTH + 1)
            cut = cut if cut >= 0 else max(text.rfind(" ", 0, WIDTH), 1)
            self._print(name, text[:cut])
            text = text[cut:].lstrip("\n ")
        self._pending[name] = text
        if output.finished:
            self._print(name, text)

    @staticmethod
    def _print(name: str, line: str) -> None:
        if line.strip():
            print(f"[{int(name) + 1}] {line}", flush=True)


def main(model: str) -> None:
    """Load the model, answer the questions and print statistics."""
    llm = LLM(model, max_model_len=1024, max_num_seqs=4, num_blocks=256)
    params = SamplingParams(temperature=0.0, max_tokens=96)
    for number, question in enumerate(QUESTIONS):
        print(f"[{number + 1}] > {question}")
        prompt = llm.encode_chat([{"role": "user", "content": question}])
        llm.engine.add_request(str(number), prompt, params)
    lines = Lines()
    start = time.perf_counter()
    while llm.engine.has_unfinished_requests():
        for output in llm.engine.step():
            lines.show(output)
    _report(llm.engine.stats(), time.perf_counter() - start)


def _report(stats: EngineStats, seconds: float) -> None:
    print(
        f"\nprompt tokens {stats.prompt_tokens}, output tokens {stats.generated_tokens}, "
        f"{stats.generated_tokens / seconds:.1f} output tokens/s (compilation included), "
        f"KV utilization {stats.mean_kv_utilization:.1%} (mean of {stats.steps} steps), "
        f"preemptions {stats.num_preemptions}, compilations {stats.num_compilations}"
    )


if __name__ == "__main__":
    main(sys.argv[1])
