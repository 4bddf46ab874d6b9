"""KV memory: contiguous reservations compared with the paged pool, and savings by sharing blocks.

    python -m bench.memory --json FILE --plot FILE

No model runs: only the lengths of random requests matter. The pool is the engine's BlockPool.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import jax

from bench.memory import report as memory_report
from bench.memory import sharing
from bench.memory.contiguous import RESERVATIONS, ContiguousManager
from bench.memory.request_mix import (
    ALPACA,
    MAX_SEQ_LEN,
    MIXES,
    SHAREGPT,
    LogNormalMix,
    RequestMix,
    describe,
    moments,
    narrowed,
    sample,
    stream,
)
from bench.memory.sharing import Savings
from bench.memory.steady_state import Manager, PagedManager, Simulation, closed_form_waste
from bench.report import command_line, header
from pagedjax.checks.one_line import exit_status
from pagedjax.config import ModelConfig
from pagedjax.layers.kv_cache import block_bytes

DTYPE = "float16"
MODELS = {
    "LLaMA-7B": ModelConfig(32000, 4096, 11008, 32, 32, 32, 128),
    "LLaMA-13B": ModelConfig(32000, 5120, 13824, 40, 40, 40, 128),
    "LLaMA-2-70B": ModelConfig(32000, 8192, 28672, 80, 64, 8, 128),
}
# KV memory of arXiv 2309.06180 on an A100-40GB, next to the weights of a 13B model.
MEMORY_MODEL, MEMORY_BYTES = "LLaMA-13B", 12 << 30
BLOCK_SIZE, BLOCK_SIZES = 16, (8, 16, 32)
WIDTHS = (2, 4, 6)
SURE = (0.8, 0.9, 0.98)  # see `sharing.survivors`; unknown for real models, so three values
NARROW_SIGMA = 0.5  # of output lengths, to show how their spread changes the savings
COMMON_REQUESTS, COMMON_LEN = 100, 1000
SHARING_STEPS = 20  # steps of each scenario, per request of --requests


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or non-zero after one line on stderr."""
    options = _parser().parse_args(arguments)
    return exit_status(partial(_run, options), options.debug)


def bytes_per_token(model: str) -> int:
    """Return the bytes of one token's keys and values in all layers."""
    return block_bytes(MODELS[model], 1, DTYPE)


def num_slots() -> int:
    """Return how many tokens' keys and values fit into the memory."""
    return MEMORY_BYTES // bytes_per_token(MEMORY_MODEL)


def _run(options: argparse.Namespace) -> None:
    _check(options)
    result: dict[str, Any] = {
        "header": header.describe(),
        "parameters": _parameters(options),
        "mixes": {mix.name: describe(mix) for mix in MIXES},
        "steady_state": _part("steady state", _steady_states(options)),
        "sharing": _part("sharing", _sharing(options)),
        "common_prompt": _common_prompts(options),
    }
    print("\n".join(header.lines(result["header"]) + memory_report.lines(result)))
    command_line.write_json(options.json, result)
    if options.plot is not None:
        memory_report.draw(result, options.plot)


def _check(options: argparse.Namespace) -> None:
    """Refuse invalid options now, not after the simulations."""
    if options.requests < 10:
        raise ValueError("--requests must be at least 10, because a fifth of them is warmup")
    if options.seed < 0:
        raise ValueError("--seed must not be negative")
    command_line.check_targets(options.json, options.plot)


def _part(name: str, entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for entry in entries:
        print(f"{name}: {entry['mix']}: {entry['what']}", file=sys.stderr)
        found.append(entry)
    return found


def _parameters(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "seed": options.seed,
        "requests": options.requests,
        "max_seq_len": MAX_SEQ_LEN,
        "memory_bytes": MEMORY_BYTES,
        "memory_model": MEMORY_MODEL,
        "slots": num_slots(),
        "block_size": BLOCK_SIZE,
        "dtype": DTYPE,
        "bytes_per_token": {name: bytes_per_token(name) for name in MODELS},
        "sharing_steps": options.requests * SHARING_STEPS,
        "narrow_sigma": NARROW_SIGMA,
        "beam_tokens": sharing.BEAM_TOKENS,
        "beam_concentration": sharing.BEAM_CONCENTRATION,
        "common_requests": COMMON_REQUESTS,
        "common_len": COMMON_LEN,
    }


def _steady_states(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for mix in MIXES:
        for reservation in RESERVATIONS:
            contiguous = ContiguousManager(num_slots(), reservation)
            yield _steady_state(options, mix, reservation.name, contiguous)
        for size in BLOCK_SIZES:
            yield _paged(options, mix, size)


def _steady_state(
    options: argparse.Namespace, mix: RequestMix, what: str, manager: Manager
) -> dict[str, Any]:
    simulation = Simulation(manager, stream(mix, options.seed))
    found = simulation.run(options.requests)
    return {"mix": mix.name, "what": what, "block_size": None, **asdict(found)}


def _paged(options: argparse.Namespace, mix: RequestMix, block_size: int) -> dict[str, Any]:
    """Simulate the paged pool; return its waste, the closed form, and its last state.

    The closed form depends on the mix only, not on the simulation.
    """
    manager = PagedManager(num_slots(), block_size)
    simulation = Simulation(manager, stream(mix, options.seed))
    found = simulation.run(options.requests)
    return {
        "mix": mix.name,
        "what": f"paged, blocks of {block_size}",
        "block_size": block_size,
        **asdict(found),
        "waste": 1 - found.utilization,
        "closed_form_waste": closed_form_waste(moments(mix).running_len, block_size),
        "last_step": asdict(manager.account(simulation.running)),
    }


def _sharing(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for mix in (ALPACA, SHAREGPT):
        for width in WIDTHS:
            yield _parallel(options, mix, width)
        for sure in SURE:
            for width in WIDTHS:
                yield _beams(options, mix, width, sure)


def _parallel(options: argparse.Namespace, mix: LogNormalMix, width: int) -> dict[str, Any]:
    """Measure samples of one prompt, with the closed form for the same requests and for the mix."""
    steps = options.requests * SHARING_STEPS
    found = sharing.measure(mix, width, BLOCK_SIZE, steps, options.seed, sharing.parallel)
    lengths = (found.lengths, sample(mix), sample(narrowed(mix, NARROW_SIGMA)))
    closed_form, whole_mix, narrow = (
        sharing.closed_form_parallel(each, width, BLOCK_SIZE) for each in lengths
    )
    return {
        **_savings(mix, f"{width} parallel samples", found),
        "sure": None,
        "closed_form_share": closed_form,
        "mix_share": whole_mix,
        "narrow_mix_share": narrow,
    }


def _beams(
    options: argparse.Namespace, mix: LogNormalMix, width: int, sure: float
) -> dict[str, Any]:
    steps = options.requests * SHARING_STEPS // 2
    lineage = partial(sharing.survivors, sure=sure)
    found = sharing.measure(mix, width, BLOCK_SIZE, steps, options.seed, lineage)
    return {**_savings(mix, f"beam search of {width}", found), "sure": sure}


def _common_prompts(options: argparse.Namespace) -> list[dict[str, Any]]:
    return [
        _savings(mix, what, savings)
        for mix in (ALPACA, SHAREGPT)
        for what, savings in zip(
            ("all prompts stored", "all outputs complete"),
            sharing.common_prompt(mix, COMMON_REQUESTS, COMMON_LEN, BLOCK_SIZE, options.seed),
            strict=True,
        )
    ]


def _savings(mix: RequestMix, what: str, found: Savings) -> dict[str, Any]:
    return {
        "mix": mix.name,
        "what": what,
        "saved_share": found.share,
        "saved_blocks": found.mean_blocks_saved,
        "saved_tokens": found.mean_tokens_saved,
        "saved_bytes": {
            name: round(found.mean_blocks_saved * block_bytes(config, BLOCK_SIZE, DTYPE))
            for name, config in MODELS.items()
        },
        "copies": found.copies,
    }


def _parser() -> argparse.ArgumentParser:
    parser = command_line.new_parser("memory", __doc__)
    add = parser.add_argument
    add("--seed", type=int, default=0, help="default: %(default)s")
    add("--requests", type=int, default=4000, help="requests to finish per mix and manager")
    command_line.add_outputs(parser, plot="how the memory is used")
    return parser


if __name__ == "__main__":
    # Nothing here needs a device, so leave GPUs to other processes.
    jax.config.update("jax_platforms", "cpu")
    sys.exit(main())
