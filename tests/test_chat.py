"""Chat messages: contents in parts as in the OpenAI API, and the options of chat templates."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from pagedjax import LLM
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.tiny_llama import GREEDY, tiny

END = "{% if add_generation_prompt %}[assistant]{% endif %}"
STRINGS = (
    "{% for m in messages %}{{ '[' + m['role'] + ']' + m['content'] + '.' }}{% endfor %}" + END
)
PRINTS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}.{% endfor %}" + END
AS_JSON = "{% for m in messages %}[{{ m.role }}]{{ m.content | tojson }}.{% endfor %}" + END
PARTS = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}<{{ part.text }}{{ part.mark }}>{% endfor %}{% endif %}."
    "{% endfor %}"
) + END
QUOTES = "{% for m in messages %}{% for p in m.content %}'{{ p.text }}'{% endfor %}{% endfor %}"
OPTIONS = "{{ colour }}{% for t in tools or [] %}({{ t.function.name }}){% endfor %}" + STRINGS
QUESTION = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {}}}


class ChatTokenizer(ByteTokenizer):
    """A byte tokenizer with the chat templates of Hugging Face."""

    def __init__(self, template: Any) -> None:
        super().__init__()
        self._inner = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")), chat_template=template
        )
        self.chat_template = template
        self.apply_chat_template = self._inner.apply_chat_template


def make_llm(template: Any) -> LLM:
    return LLM.from_params(*tiny("base"), ChatTokenizer(template), num_blocks=64, max_num_seqs=8)


def rendered(template: Any, messages: Any, **options: Any) -> str:
    llm = make_llm(template)
    return llm.engine.tokenizer.decode(llm.encode_chat(messages, **options))


def parts(*texts: str) -> list[dict[str, Any]]:
    content = [{"type": "text", "text": text, "mark": "!"} for text in texts]
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize("template", [STRINGS, PRINTS])
def test_parts_are_joined_for_templates_of_strings(template: str) -> None:
    messages = [*parts("a", "b"), *QUESTION]
    assert rendered(template, messages) == "[user]a\nb.[user]hi.[assistant]"
    assert messages[0] == parts("a", "b")[0]


def test_parts_are_joined_for_a_template_that_would_print_json() -> None:
    assert rendered(AS_JSON, parts("a", "b")) == '[user]"a\\nb".[assistant]'


def test_parts_are_passed_on_to_templates_that_read_them() -> None:
    messages = [*parts("a", "b"), *QUESTION]
    assert rendered(PARTS, messages) == "[user]<a!><b!>.[user]hi.[assistant]"
    assert rendered(QUOTES, parts("a", "b")) == "'a''b'"


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image_url", "image_url": {}}, "type 'image_url' is not supported; .*'text'"),
        ({"type": "input_audio"}, "type 'input_audio'"),
        ({"text": "a"}, "must be a dict with a 'type'"),
        ("a", "part 'a' must be a dict"),
        ({"type": "text"}, "must have a string as its 'text'"),
    ],
)
@pytest.mark.parametrize("template", [STRINGS, PARTS])
def test_other_parts_are_refused_by_name(template: str, part: Any, message: str) -> None:
    llm = make_llm(template)
    bad = [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]
    with pytest.raises(ValueError, match=f"prompt 1: .*{message}"):
        llm.chat([QUESTION, bad], GREEDY, use_tqdm=False)
    outputs = llm.chat([QUESTION, bad], GREEDY, use_tqdm=False, on_error="return")
    assert [each.outputs[0].finish_reason for each in outputs] == ["length", "error"]


@pytest.mark.parametrize("conversation", [5, None, "text"])
def test_invalid_conversations_are_refused(conversation: Any) -> None:
    with pytest.raises(ValueError, match="prompt 0: .*the c"):
        make_llm(STRINGS).chat([conversation], use_tqdm=False)


OPEN = {"add_generation_prompt": False, "continue_final_message": True}
ANSWERED = [*QUESTION, {"role": "assistant", "content": "I think"}]


@pytest.mark.parametrize(
    ("messages", "options", "wanted"),
    [
        (QUESTION, {}, "[user]hi.[assistant]"),
        (QUESTION, {"add_generation_prompt": False}, "[user]hi."),
        (QUESTION, {"tools": [TOOL]}, "(look_up)[user]hi.[assistant]"),
        (QUESTION, {"chat_template": "{{ messages[0].content }}?"}, "hi?"),
        (QUESTION, {"chat_template_kwargs": {"colour": "red"}}, "red[user]hi.[assistant]"),
        (ANSWERED, OPEN, "[user]hi.[assistant]I think"),
        ([QUESTION[0], parts("I", "think")[0]], OPEN, "[user]hi.[user]I\nthink"),
    ],
)
def test_the_options_of_a_template(messages: Any, options: dict, wanted: str) -> None:
    assert rendered(OPTIONS, messages, **options) == wanted
    llm = make_llm(OPTIONS)
    for given in (messages, [messages]):
        output = llm.chat(given, GREEDY, **options, use_tqdm=False)[0]
        assert output.prompt_token_ids == list(wanted.encode())


def test_named_templates_and_tokenizers_without_a_template() -> None:
    assert rendered({"default": STRINGS, "short": "short"}, QUESTION, chat_template="short") == (
        "short"
    )
    assert rendered(None, QUESTION, chat_template=STRINGS) == "[user]hi.[assistant]"
    with pytest.raises(ValueError, match="no chat template; give chat_template"):
        rendered(None, QUESTION)
    llm = LLM.from_params(*tiny("base"), ByteTokenizer(), num_blocks=64)
    with pytest.raises(ValueError, match="ByteTokenizer has no apply_chat_template"):
        llm.encode_chat(QUESTION, chat_template=STRINGS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": TOOL}, "tools=.* must be a list or None"),
        ({"chat_template": 5}, "chat_template=5"),
        ({"add_generation_prompt": 1}, "add_generation_prompt=1 must be True or False"),
        ({"continue_final_message": True}, "add_generation_prompt=True .* set the latter to False"),
        ({"chat_template_kwargs": [1]}, r"chat_template_kwargs=\[1\] must be a dict"),
        ({"chat_template_kwargs": {"tokenize": 1}}, "has tokenize, which templates do not see"),
    ],
)
def test_invalid_options_raise_for_any_on_error(options: dict, message: str) -> None:
    llm = make_llm(STRINGS)
    with pytest.raises(ValueError, match=message):
        llm.chat(QUESTION, on_error="return", **options)
    with pytest.raises(ValueError, match=message):
        llm.encode_chat(QUESTION, **options)
