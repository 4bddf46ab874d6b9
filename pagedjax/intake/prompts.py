"""Prompts as users give them (text, token ids, or vLLM's dicts), with their sampling params."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pagedjax.sampling_params import SamplingParams

Prompt = str | Sequence[int] | Mapping[str, Any]

CONTENTS = ("prompt", "prompt_token_ids")
KEYS = (*CONTENTS, "cache_salt")


class ParsedPrompt(NamedTuple):
    """A text or token ids, not checked further, and the prompt's own cache salt.

    cache_salt: None if the one in SamplingParams applies.
    """

    content: str | Sequence[int]
    cache_salt: str | None = None


def parse_prompt(prompt: Prompt) -> ParsedPrompt:
    """Split a prompt into content and salt; ValueError names what is wrong with a dict."""
    if not isinstance(prompt, Mapping):
        return ParsedPrompt(prompt)
    unknown = [repr(key) for key in prompt if key not in KEYS]
    if unknown:
        raise ValueError(
            f"the prompt has the unknown key {', '.join(unknown)}; supported: {_quoted(KEYS)}"
        )
    given = [key for key in CONTENTS if key in prompt]
    if len(given) != 1:
        raise ValueError(
            f"the prompt {dict(prompt)!r} must have one of {_quoted(CONTENTS)}; "
            f"it has {'both' if given else 'neither'}"
        )
    content = prompt[given[0]]
    if isinstance(content, Mapping) or isinstance(content, str) != (given[0] == "prompt"):
        wanted = "a string" if given[0] == "prompt" else "a list of token ids"
        raise ValueError(f"the prompt's {given[0]}={content!r} must be {wanted}")
    salt = prompt.get("cache_salt")
    if not isinstance(salt, str | None):
        raise ValueError(f"the prompt's cache_salt={salt!r} must be a string or None")
    return ParsedPrompt(content, salt)


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def listed(prompts: Prompt | Iterable[Prompt]) -> list[Any]:
    """Return a list of prompts, also for a single one; TypeError for anything else."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    is_array = getattr(prompts, "ndim", 1) > 0 and isinstance(prompts, Iterable)
    if isinstance(prompts, bytes | bytearray) or not is_array:
        raise TypeError(
            f"prompts={prompts!r}: give a text, a list of token ids, a dict, or a list of those"
        )
    items = prompts.tolist() if hasattr(prompts, "tolist") else list(prompts)
    return [items] if items and _is_int(items[0]) else items


def one_per_prompt(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    """Return `count` SamplingParams: the defaults for None, one for all, or those given."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if not isinstance(params, Iterable):
        raise TypeError(f"sampling_params={params!r} must be None, SamplingParams or a list")
    params = list(params)
    if len(params) != count:
        raise ValueError(
            f"{len(params)} sampling_params for {count} prompts; give one, or one each"
        )
    return params


def _is_int(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return True
