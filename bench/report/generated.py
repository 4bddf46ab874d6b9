"""Sections of Markdown pages that are generated from the results of benchmarks.

A section lies between two comments; the first one names a function of SECTIONS and a result:

    <!-- figures: throughput throughput_smollm2_bf16_cpu -->
    ...
    <!-- end of figures -->
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from bench.report import (
    accuracy_section,
    attention_section,
    latency_section,
    memory_section,
    scaling_section,
    step_section,
    throughput_section,
)

SECTIONS: Mapping[str, Callable[[str], list[str]]] = {
    "throughput": throughput_section.full,
    "throughput-short": throughput_section.short,
    "latency": latency_section.full,
    "scaling": scaling_section.full,
    "parity": accuracy_section.parity,
    "kv-accuracy": accuracy_section.pools,
    "memory": memory_section.full,
    "attention": attention_section.timed,
    "compiled-kernels": attention_section.compiled,
    "step-facts": step_section.full,
}
MARKED = re.compile(
    r"^(<!-- figures: (\S+) (\S+) -->)\n.*?^(<!-- end of figures -->)$", re.MULTILINE | re.DOTALL
)


def filled(page: str) -> str:
    """Return the text of a page with all its sections generated again."""
    return MARKED.sub(_section, page)


def outside(page: str) -> str:
    """Return the text of a page without its generated sections."""
    return MARKED.sub("", page)


def _section(found: re.Match[str]) -> str:
    start, section, result, end = found.groups()
    return "\n".join([start, "", *SECTIONS[section](result), "", end])
