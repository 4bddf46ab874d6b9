"""Command line: `python -m pagedjax generate --model PATH --prompt TEXT [--chat] ...`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pagedjax.checks.one_line import exit_status
from pagedjax.config import DTYPES
from pagedjax.llm import LLM
from pagedjax.outputs import RequestOutput
from pagedjax.sampling_params import SamplingParams


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or non-zero after one line on stderr."""
    options = _parser().parse_args(arguments)
    return exit_status(partial(_generate, options), options.debug)


def _generate(options: argparse.Namespace) -> None:
    params = SamplingParams(
        max_tokens=options.max_tokens, temperature=options.temperature, top_p=options.top_p,
        top_k=options.top_k, min_p=options.min_p, seed=options.seed,
    )  # fmt: skip
    llm = LLM(
        options.model, dtype=options.dtype, max_model_len=options.max_model_len,
        num_blocks=options.num_blocks, max_num_seqs=1, attention=options.attention,
        compilation_cache_dir=_cache_folder(options.compilation_cache),
    )  # fmt: skip
    prompt: Any = options.prompt
    if options.chat:
        prompt = llm.encode_chat([{"role": "user", "content": options.prompt}])
    output = _stream(llm, prompt, params, quiet=options.json)
    if options.json:
        print(json.dumps({"prompt": options.prompt, **_as_dict(output)}))
    if options.stats:
        print(json.dumps(llm.engine.stats().as_dict()), file=sys.stderr)


def _cache_folder(given: str | None) -> str | None:
    """Folder for compiled programs; None if JAX's own setting applies."""
    if given == "none":
        return None
    if given is not None:
        return os.path.expanduser(given)
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return None
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return str(Path(user) / "pagedjax")


def _stream(llm: LLM, prompt: Any, params: SamplingParams, quiet: bool) -> RequestOutput:
    for output in llm.stream(prompt, params):
        if not quiet:
            print(output.outputs[0].delta_text, end="", flush=True)
    if not quiet:
        print()
    return output


def _as_dict(output: RequestOutput) -> dict[str, Any]:
    completion = output.outputs[0]
    return {
        "text": completion.text,
        "prompt_token_ids": output.prompt_token_ids,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pagedjax", description="Paged LLM inference.")
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("generate", help="complete one prompt, streaming").add_argument
    add("--model", required=True, help="converted or Hugging Face folder, .gguf file, or hub id")
    add("--prompt", required=True)
    add("--chat", action="store_true", help="use the model's chat template")
    add("--max-tokens", type=int, default=128)
    add("--temperature", type=float, default=1.0, help="0 is greedy")
    add("--top-p", type=float, default=1.0)
    add("--top-k", type=int, default=0)
    add("--min-p", type=float, default=0.0)
    add("--seed", type=int)
    add("--dtype", default="auto", help=", ".join(DTYPES))
    add("--max-model-len", type=int, help="tokens of prompt and output together")
    add("--num-blocks", type=int, help="size of the KV pool")
    add("--attention", default="auto")
    add("--compilation-cache", metavar="DIR", help="for compiled programs, by default in the "
        "user's cache folder; 'none': as JAX is set")  # fmt: skip
    add("--json", action="store_true", help="print one JSON object instead of the text")
    add("--stats", action="store_true", help="print the engine's statistics to stderr")
    add("--debug", action="store_true", help="show the traceback of an error")
    return parser


if __name__ == "__main__":
    sys.exit(main())
