"""How a peer that lives between its runs is asked and answers: lines of JSON on stdin and stdout.

The first line it writes says that it is ready, and what with; then each line that it reads is a
task, and each line that it writes is the result. At the end of stdin it ends. It waits by reading,
so it takes no time from whoever runs meanwhile.
"""

import argparse
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from peer_options import new_parser

Answer = Callable[[dict], dict]
# () -> (what answers a task, what the peer was made with)
Begin = Callable[[], tuple[Answer, dict]]
# (prompts, tokens to generate for each) -> output ids of each
Generate = Callable[[list[list[int]], list[int]], list[list[int]]]


def arguments(doc: str) -> argparse.Namespace:
    """Return the command line, which is the same for all peers."""
    parser = new_parser(doc, dtype="bfloat16")
    parser.add_argument("--rows", type=int, default=64, help="most requests that run at once")
    parser.add_argument("--max-model-len", type=int, default=512, help="tokens of one request")
    args = parser.parse_args()
    if args.rows < 1 or args.max_model_len < 2:
        parser.error("--rows must be at least 1 and --max-model-len at least 2")
    return args


def answer_tasks(begin: Begin) -> None:
    """Make the engine, say that it is ready, and answer until stdin ends.

    Whoever asks may be killed meanwhile: work that nobody waits for is interrupted.
    """
    # A background job's children begin with it ignored, and then nothing could interrupt them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    channel = private_stdout()
    lines: queue.Queue[str] = queue.Queue()
    working, gone = threading.Event(), threading.Event()
    working.set()
    threading.Thread(target=read_lines, args=(lines, working, gone), daemon=True).start()
    answer, made_with = begin()
    write(channel, made_with)
    working.clear()
    while line := lines.get():
        working.set()
        if gone.is_set():
            break
        write(channel, answer(json.loads(line)))
        working.clear()


def read_lines(lines: "queue.Queue[str]", working: threading.Event, gone: threading.Event) -> None:
    """Hand over the lines of stdin, and an empty one at its end."""
    for line in sys.stdin:
        lines.put(line)
    gone.set()
    lines.put("")
    if working.is_set():
        # A real signal: `_thread.interrupt_main` would not wake a system call that waits already.
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def private_stdout() -> TextIO:
    """Return stdout as a file that nobody else has: what libraries print goes to stderr instead."""
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return channel


def write(channel: TextIO, value: dict) -> None:
    """Send one line."""
    channel.write(json.dumps(value) + "\n")
    channel.flush()


def timed(generate: Generate) -> Answer:
    """Return what answers a workload with its output ids and the seconds that they took."""

    def answer(task: dict) -> dict:
        prompts, output_lens = task["prompts"], task["output_lens"]
        check_workload(prompts, output_lens)
        start = time.perf_counter()
        outputs = generate(prompts, output_lens)
        return {"seconds": time.perf_counter() - start, "outputs": outputs}

    return answer


def check_workload(prompts: list[list[int]], output_lens: list[int]) -> None:
    """Refuse a workload that a peer would run wrongly."""
    if len(prompts) != len(output_lens):
        raise ValueError(f"{len(prompts)} prompts, but {len(output_lens)} output lengths.")
    if not prompts or not all(prompts) or min(output_lens) < 1:
        raise ValueError("Every request needs a prompt and an output of at least one token.")
