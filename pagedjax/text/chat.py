"""Conversations to token ids through a chat template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pagedjax.text.encode import encode_rendered

Messages = Sequence[Mapping[str, Any]]

# Arguments that apply_chat_template does not pass on to the template.
NOT_OF_TEMPLATES = frozenset(
    (
        "conversation", "tools", "chat_template", "add_generation_prompt", "continue_final_message",
        "tokenize", "sanitize_control_tokens", "padding", "truncation", "max_length",
        "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
    )
)  # fmt: skip
PROBE = "pagedjax-probe"
PRINTED = re.compile(rf"""['"]text['"]\s*:\s*['"]{PROBE}""")


@dataclass(frozen=True)
class ChatOptions:
    """Arguments of Hugging Face's `apply_chat_template` besides the conversation.

    tools: functions or JSON schemas, for a template that supports tools. chat_template: replaces
    the tokenizer's own, or names one of several that it has. add_generation_prompt: end with the
    beginning of an answer. continue_final_message: leave the last message open, to be continued.
    chat_template_kwargs: more variables for the template.
    """

    tools: Sequence[Any] | None = None
    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.tools, list | tuple | None):
            raise ValueError(f"tools={self.tools!r} must be a list or None")
        if not isinstance(self.chat_template, str | None):
            raise ValueError(f"chat_template={self.chat_template!r} must be a string or None")
        for name in ("add_generation_prompt", "continue_final_message"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r} must be True or False")
        if self.add_generation_prompt and self.continue_final_message:
            raise ValueError(
                "continue_final_message=True goes on with the last message, and "
                "add_generation_prompt=True begins another; set the latter to False"
            )
        if not isinstance(self.chat_template_kwargs, Mapping | None):
            raise ValueError(
                f"chat_template_kwargs={self.chat_template_kwargs!r} must be a dict or None"
            )
        if taken := sorted(NOT_OF_TEMPLATES & (self.chat_template_kwargs or {}).keys()):
            raise ValueError(
                f"chat_template_kwargs has {', '.join(taken)}, which templates do not see; give "
                "it variables of the template"
            )

    def render(self, tokenizer: Any, messages: Messages) -> str:
        """The text of a conversation; raises whatever the template raises."""
        return tokenizer.apply_chat_template(
            list(messages),
            tools=None if self.tools is None else list(self.tools),
            chat_template=self.chat_template,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            tokenize=False,
            **(self.chat_template_kwargs or {}),
        )


def encode_chat(
    tokenizer: Any, messages: Messages, options: ChatOptions | None = None
) -> list[int]:
    """Token ids of a conversation by the tokenizer's chat template, ready for the answer.

    A content may be a list of text parts: a template that reads lists gets the list, other
    templates get the texts joined by newlines. The template runs in jinja2's sandbox. Raises
    ValueError for parts of other types, if there is no template, or if the template raises.
    """
    options = options or ChatOptions()
    if not (options.chat_template or getattr(tokenizer, "chat_template", None)):
        raise ValueError(
            "the tokenizer has no chat template; give chat_template, or use generate with a plain "
            "prompt"
        )
    if not hasattr(tokenizer, "apply_chat_template"):
        raise ValueError(f"the tokenizer {type(tokenizer).__name__} has no apply_chat_template")
    if not isinstance(messages, Sequence):
        raise ValueError(f"the conversation {messages!r} must be a list of dicts")
    texts = [_texts_of_parts(each) for each in messages]
    if any(each is not None for each in texts) and not _takes_parts(tokenizer, options):
        messages = [
            message if parts is None else {**message, "content": "\n".join(parts)}
            for message, parts in zip(messages, texts, strict=True)
        ]
    try:
        text = options.render(tokenizer, messages)
    except Exception as error:  # a template is a program of the checkpoint and may raise anything
        raise ValueError(f"the chat template refuses the conversation: {error}") from error
    return encode_rendered(tokenizer, text)


def _texts_of_parts(message: Any) -> list[str] | None:
    """The texts of a content that is a list of parts; None for other contents."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list | tuple):
        return None
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind is None:
            raise ValueError(f"the content part {part!r} must be a dict with a 'type'")
        if kind != "text":
            raise ValueError(f"a content part of type {kind!r} is not supported; supported: 'text'")
        if not isinstance(part.get("text"), str):
            raise ValueError(f"the content part {dict(part)!r} must have a string as its 'text'")
    return [part["text"] for part in content]


def _takes_parts(tokenizer: Any, options: ChatOptions) -> bool:
    """Whether the template reads list contents, instead of printing or refusing them."""
    probe = [{"role": "user", "content": [{"type": "text", "text": PROBE}]}]
    plain = replace(options, add_generation_prompt=False, continue_final_message=False)
    try:
        text = plain.render(tokenizer, probe)
    except Exception:  # such as a TypeError for a list that is added to a string
        return False
    return PROBE in text and not PRINTED.search(text)
