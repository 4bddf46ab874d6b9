"""Token ids of texts and chats: one BOS, and the checkpoint's own chat template."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from pagedjax.text.chat import encode_chat
from pagedjax.text.encode import encode
from tests.support.byte_tokenizer import ByteTokenizer

SPECIAL = ["<s>", "<|start|>", "<|end|>", "<|eot|>"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start|>' + m['role'] + '<|end|>' + m['content'] + '<|eot|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>' }}{% endif %}"
)
CONVERSATION = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "who are you ?"},
]


def word_level(add_bos=True):
    """A `tokenizers.Tokenizer` of a few words that prepends <s> if `add_bos`."""
    words = ["[UNK]", *SPECIAL, *"system user assistant be brief who are you ?".split()]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(SPECIAL)
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    return tokenizer


def transformers_tokenizer(template=TEMPLATE, add_bos=True):
    return PreTrainedTokenizerFast(
        tokenizer_object=word_level(add_bos), bos_token="<s>", unk_token="[UNK]",
        chat_template=template,
    )  # fmt: skip


def words(tokenizer, ids):
    return tokenizer.convert_ids_to_tokens(ids)


@pytest.mark.parametrize("text", ["who are you", "<s> who are you", "<s>who are you"])
def test_text_is_encoded_with_one_bos(text):
    """Also if the text already begins with the BOS token."""
    tokenizer = transformers_tokenizer()
    assert words(tokenizer, encode(tokenizer, text)) == ["<s>", "who", "are", "you"]


def test_no_bos_is_added_where_the_tokenizer_adds_none():
    tokenizer = transformers_tokenizer(add_bos=False)
    assert words(tokenizer, encode(tokenizer, "who are you")) == ["who", "are", "you"]


def test_empty_text_is_the_bos_alone():
    tokenizer = transformers_tokenizer()
    assert words(tokenizer, encode(tokenizer, "")) == ["<s>"]


def test_two_equal_first_tokens_other_than_bos_are_kept():
    tokenizer = transformers_tokenizer(add_bos=False)
    assert words(tokenizer, encode(tokenizer, "you you are")) == ["you", "you", "are"]


def test_the_encoding_of_a_plain_tokenizer_is_accepted():
    tokenizer = word_level()
    ids = encode(tokenizer, "be brief")
    assert [tokenizer.id_to_token(i) for i in ids] == ["<s>", "be", "brief"]


def test_encode_returns_a_list_of_its_own():
    class Sharing(ByteTokenizer):
        ids = [1, 2]

        def encode(self, text):
            return self.ids

    assert encode(Sharing(), "x") is not Sharing.ids


@pytest.mark.parametrize("messages", [CONVERSATION, CONVERSATION[1:]])
def test_a_conversation_is_encoded_as_transformers_does(messages):
    tokenizer = transformers_tokenizer()
    wanted = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert encode_chat(tokenizer, messages) == wanted


def test_a_conversation_has_one_bos_and_asks_for_the_answer():
    tokenizer = transformers_tokenizer()
    assert words(tokenizer, encode_chat(tokenizer, CONVERSATION[:1])) == [
        "<s>", "<|start|>", "system", "<|end|>", "be", "brief", "<|eot|>",
        "<|start|>", "assistant", "<|end|>",
    ]  # fmt: skip


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), transformers_tokenizer(template=None)])
def test_a_tokenizer_without_template_is_refused(tokenizer):
    with pytest.raises(ValueError, match="no chat template"):
        encode_chat(tokenizer, CONVERSATION)


@pytest.mark.parametrize(
    "template",
    ["{{ raise_exception('roles must alternate') }}", "{{ missing.attribute }}",
     "{% for m in messages %}", "{{ 'text' + 1 }}", "{{ messages[9].content.x }}"],
    ids=["raises", "undefined", "syntax", "type", "index"],
)  # fmt: skip
def test_a_template_that_fails_is_a_value_error(template):
    with pytest.raises(ValueError, match="chat template"):
        encode_chat(transformers_tokenizer(template), CONVERSATION)


def test_the_refusal_says_what_the_template_said():
    tokenizer = transformers_tokenizer("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ValueError, match="roles must alternate"):
        encode_chat(tokenizer, CONVERSATION)


@pytest.mark.parametrize(
    "messages",
    [[], "hello", ["hello"], [{"role": "user"}], [{"role": "user", "content": None}],
     [{"role": "user", "content": [{"type": "image_url"}]}]],
    ids=["empty", "text", "list of text", "no content", "null", "parts"],
)  # fmt: skip
def test_messages_that_the_template_cannot_join_are_a_value_error(messages):
    with pytest.raises(ValueError):
        encode_chat(transformers_tokenizer(), messages)


@pytest.mark.parametrize("tokenizer", [word_level(), transformers_tokenizer()])
def test_text_that_is_not_unicode_is_a_value_error(tokenizer):
    """`generate(on_error="return")` can then fail this prompt alone."""
    with pytest.raises(ValueError):
        encode(tokenizer, "be \ud800")


@pytest.mark.parametrize(
    "template",
    ["{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.append(1) }}",
     "{{ cycler.__init__.__globals__.os.getcwd() }}"],
    ids=["mro", "mutation", "globals"],
)  # fmt: skip
def test_a_template_cannot_leave_its_sandbox(template):
    with pytest.raises(ValueError, match="chat template"):
        encode_chat(transformers_tokenizer(template), CONVERSATION)


def test_the_template_does_not_change_the_messages():
    messages = [dict(each) for each in CONVERSATION]
    encode_chat(transformers_tokenizer(), messages)
    assert messages == CONVERSATION
