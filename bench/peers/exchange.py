"""Protocol of a peer that stays alive between its runs: lines of JSON on stdin and stdout.

The peer first writes one line with its versions when it is ready. Then each line it reads is a
task, and each line it writes is a result. It exits at the end of stdin. It waits by reading, so it
uses no CPU time while other engines run.
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
# () -> (function that answers a task, versions and settings of the peer)
Begin = Callable[[], tuple[Answer, dict]]
# (prompts, output lengths) -> output ids of each
Generate = Callable[[list[list[int]], list[int]], list[list[int]]]


def arguments(doc: str) -> argparse.Namespace:
    """Parse the command line, which is the same for all peers that stay alive."""
    parser = new_parser(doc, dtype="bfloat16")
    parser.add_argument("--rows", type=int, default=64, help="most requests that run at once")
    parser.add_argument("--max-model-len", type=int, default=512, help="tokens of one request")
    args = parser.parse_args()
    if args.rows < 1 or args.max_model_len < 2:
        parser.error("--rows must be at least 1 and --max-model-len at least 2")
    return args


def answer_tasks(begin: Begin) -> None:
    """Create the engine, write the ready line, and answer tasks until stdin ends.

    If stdin ends during a task because the caller was killed, the task is interrupted.
    """
    # Children of a background job start with SIGINT ignored, and could not be interrupted.
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
    """Put the lines of stdin into the queue, and an empty line at its end."""
    for line in sys.stdin:
        lines.put(line)
    gone.set()
    lines.put("")
    if working.is_set():
        # A real signal: `_thread.interrupt_main` would not interrupt a blocking system call.
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def private_stdout() -> TextIO:
    """Return the stdout for results alone; what libraries print to stdout goes to stderr."""
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return channel


def write(channel: TextIO, value: dict) -> None:
    """Write one line."""
    channel.write(json.dumps(value) + "\n")
    channel.flush()


def timed(generate: Generate) -> Answer:
    """Return a function that answers a workload with its output ids and the seconds they took."""

    def answer(task: dict) -> dict:
        prompts, output_lens = task["prompts"], task["output_lens"]
        check_workload(prompts, output_lens)
        start = time.perf_counter()
        outputs = generate(prompts, output_lens)
        return {"seconds": time.perf_counter() - start, "outputs": outputs}

    return answer


def check_workload(prompts: list[list[int]], output_lens: list[int]) -> None:
    """Raise ValueError for an invalid workload."""
    if len(prompts) != len(output_lens):
        raise ValueError(f"{len(prompts)} prompts, but {len(output_lens)} output lengths.")
    if not prompts or not all(prompts) or min(output_lens) < 1:
        raise ValueError("Every request needs a prompt and an output of at least one token.")
