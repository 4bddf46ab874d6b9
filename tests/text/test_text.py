"""Text in and out: whole characters as they complete, one BOS, the checkpoint's own template."""

import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from pagedjax.sampling_params import SamplingParams
from pagedjax.schedule.request import Request, Status
from pagedjax.text.chat import encode_chat
from pagedjax.text.detokenizer import Detokenizer
from pagedjax.text.encode import encode
from pagedjax.text.transcript import Transcript
from tests.support.byte_tokenizer import BOS, EOS, ByteTokenizer, WordTokenizer

PEPPER = list(b"\xf0\x9f\x8c\xb6")  # U+1F336
ALPHABET = "aé\u20ac\U0001f336 \n\u0301\ud7ff"


def deltas(ids, prompt=(), size=1, tokenizer=None, **options):
    """The deltas of `ids` arriving `size` at a time after `prompt`."""
    detokenizer = Detokenizer(tokenizer or ByteTokenizer(), list(prompt), **options)
    pieces = [ids[start : start + size] for start in range(0, len(ids), size)] or [[]]
    return [
        detokenizer.append(list(piece), final=number == len(pieces))
        for number, piece in enumerate(pieces, 1)
    ]


def one_shot(ids, **options):
    return ByteTokenizer().decode(list(ids), **options)


def random_bytes(seed):
    """Bytes that are mostly parts of characters, valid or not, with special tokens among them."""
    rng = random.Random(seed)
    parts = [[rng.randrange(256)], PEPPER[: rng.randrange(5)], list("é€".encode()), [BOS], [0x80]]
    return [i for _ in range(rng.randrange(30)) for i in rng.choice(parts)]


def random_text(seed):
    rng = random.Random(seed)
    return list("".join(rng.choices(ALPHABET, k=rng.randrange(40))).encode())


# -- decoding -------------------------------------------------------------------------------------


def test_a_character_is_released_with_its_last_byte():
    """B51."""
    assert deltas([*PEPPER, ord("!")]) == ["", "", "", "\U0001f336", "!"]


def test_a_character_of_three_bytes_in_two_tokens_of_one_call():
    assert deltas(list("a€b".encode()), size=2) == ["", "a€", "b"]


def test_output_that_ends_within_a_character_ends_in_one_replacement():
    """B51."""
    assert deltas(PEPPER[:3]) == ["", "", "\ufffd"]


def test_what_is_held_is_released_by_a_final_call_without_tokens():
    detokenizer = Detokenizer(ByteTokenizer(), [])
    detokenizer.append([ord("a"), *PEPPER[:2]])
    assert detokenizer.append([], final=True) == "a\ufffd"


def test_a_final_call_without_tokens_adds_nothing_to_whole_text():
    detokenizer = Detokenizer(ByteTokenizer(), [ord("x")])
    detokenizer.append([ord("a")])
    assert detokenizer.append([], final=True) == ""


def test_a_character_that_the_prompt_began_brings_none_of_the_prompt():
    """B51: neither side has the character, and the output is decoded by itself."""
    prompt = [*b"What is this? ", *PEPPER[:2]]
    assert "".join(deltas(PEPPER[2:], prompt)) == one_shot(PEPPER[2:])


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("prompt", [[], [BOS, *b"Hi "]], ids=["no prompt", "prompt"])
def test_deltas_of_random_bytes_add_up_to_one_decode(prompt, size):
    for seed in range(200):
        ids = random_bytes(seed)
        assert "".join(deltas(ids, prompt, size)) == one_shot(ids), ids


@pytest.mark.parametrize("size", [1, 3])
def test_deltas_of_random_text_add_up_to_it(size):
    for seed in range(200):
        ids = random_text(seed)
        assert "".join(deltas(ids, [*b"Hi"], size)).encode() == bytes(ids)


def test_deltas_after_a_cut_prompt_add_up_to_the_output_alone():
    for seed in range(200):
        ids = random_bytes(seed)
        assert "".join(deltas(ids, [*b"Hi", *PEPPER[:2]])) == one_shot(ids), ids


def test_no_delta_of_valid_text_holds_a_replacement():
    for seed in range(200):
        assert "\ufffd" not in "".join(deltas(random_text(seed))[:-1])


def test_text_is_what_the_deltas_add_up_to():
    detokenizer = Detokenizer(ByteTokenizer(), [ord("x")])
    added = "".join(detokenizer.append([byte]) for byte in [*b"ab", *PEPPER])
    assert detokenizer.text == added == "ab\U0001f336"


def test_a_character_that_the_text_itself_means_as_replacement_is_kept():
    assert "".join(deltas(list("a\ufffdb".encode()))) == "a\ufffdb"


def byte_fallback():
    """Ids below 256 are bytes, 256 is " a": the decoder of Llama 2's and Mistral's tokenizers.

    Of a run of byte tokens with one broken byte among them, it replaces every byte.
    """
    vocabulary = {f"<0x{i:02X}>": i for i in range(256)} | {"\u2581a": 256, "<unk>": 257}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


@pytest.mark.parametrize(
    ("ids", "wanted"),
    [
        ([*PEPPER, *PEPPER], ["", "", "", "\U0001f336", "", "", "", "\U0001f336"]),
        ([*PEPPER, *PEPPER[:3]], ["", "", "", "\U0001f336", "", "", "\ufffd" * 3]),
        ([*PEPPER, 0xFF, 256], ["", "", "", "\U0001f336", "", "\ufffd a"]),
        ([256, *PEPPER[:2], 256], [" a", "", "", "\ufffd\ufffd a"]),
    ],
    ids=["whole", "cut", "broken", "word"],
)
def test_a_broken_byte_does_not_bring_whole_characters_back_as_replacements(ids, wanted):
    assert deltas(ids, [256], tokenizer=byte_fallback()) == wanted


@pytest.mark.parametrize("characters", [1, 2, 3, 5])
def test_a_prompt_that_ends_in_bytes_leaves_the_first_space(characters):
    """Wherever the context begins, also within one of the characters."""
    tokenizer = byte_fallback()
    tokenizer.decoder = decoders.Sequence([tokenizer.decoder, decoders.Strip(content=" ", left=1)])
    assert deltas([256], [256, *PEPPER * characters], tokenizer=tokenizer) == [" a"]


@pytest.mark.parametrize("prompt", [[0], [0, 1, 2], list(range(10))])
def test_the_first_word_of_the_output_keeps_its_space(prompt):
    tokenizer = WordTokenizer("a b c d e f g h i j Hello world")
    assert deltas([10, 11], prompt, tokenizer=tokenizer) == [" Hello", " world"]


def test_each_later_word_keeps_its_space():
    tokenizer = WordTokenizer("a b c")
    assert deltas([1, 2, 0, 0, 1], [0], tokenizer=tokenizer) == [" b", " c", " a", " a", " b"]


@pytest.mark.parametrize("ids", [[2, 3, 4], [2, 2, 3], [2, 3], [2, 1, 1, 2, 3]])
@pytest.mark.parametrize("size", [1, 2])
def test_spaces_that_begin_the_output_are_dropped_as_by_one_decode(ids, size):
    """After special tokens alone, the first space of a SentencePiece text is no text."""
    vocabulary = {"<unk>": 0, "<s>": 1, "\u2581": 2, "\u2581a": 3, "b": 4}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    released = deltas(ids, [1], size=size, tokenizer=tokenizer)
    assert "".join(released) == tokenizer.decode([1, *ids])


@pytest.mark.parametrize(("skip", "text"), [(True, "ab"), (False, "a<257>b<256>")])
def test_special_tokens_are_skipped_when_asked(skip, text):
    ids = [ord("a"), EOS, ord("b"), BOS]
    assert "".join(deltas(ids, skip_special_tokens=skip)) == text


@pytest.mark.parametrize("prompt", [[BOS, *b"Hi"], [*b"Hi", *PEPPER[:2]]], ids=["whole", "cut"])
def test_deltas_with_special_tokens_add_up_to_one_decode(prompt):
    for seed in range(200):
        ids = random_bytes(seed)
        wanted = one_shot(ids, skip_special_tokens=False)
        assert "".join(deltas(ids, prompt, skip_special_tokens=False)) == wanted, ids


def test_a_special_token_within_a_character_does_not_break_it():
    assert "".join(deltas([*PEPPER[:2], EOS, *PEPPER[2:]])) == "\U0001f336"


@pytest.mark.parametrize(
    "ids",
    [[ord("a")] * 2000, PEPPER * 500, [EOS] * 2000, [0xFF] * 2000, list("\ufffd".encode()) * 666],
    ids=["ascii", "four bytes", "special", "invalid", "replacement characters"],
)
def test_the_work_per_token_does_not_grow(ids):
    tokenizer = ByteTokenizer()
    deltas(ids, [*b"some prompt"], tokenizer=tokenizer)
    assert tokenizer.num_decoded <= 40 * len(ids)


def test_the_work_does_not_grow_with_the_prompt():
    tokenizer = ByteTokenizer()
    deltas([ord("a")], [ord("x")] * 2000, tokenizer=tokenizer)
    assert tokenizer.num_decoded <= 40


# -- encoding -------------------------------------------------------------------------------------

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
    """A `tokenizers.Tokenizer` of a few words that puts <s> before every text."""
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
    """B20: also where the text spells it out."""
    tokenizer = transformers_tokenizer()
    assert words(tokenizer, encode(tokenizer, text)) == ["<s>", "who", "are", "you"]


def test_no_bos_is_added_where_the_tokenizer_adds_none():
    tokenizer = transformers_tokenizer(add_bos=False)
    assert words(tokenizer, encode(tokenizer, "who are you")) == ["who", "are", "you"]


def test_empty_text_is_the_bos_alone():
    tokenizer = transformers_tokenizer()
    assert words(tokenizer, encode(tokenizer, "")) == ["<s>"]


def test_two_equal_first_tokens_that_are_no_bos_stay():
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
    """B20."""
    tokenizer = transformers_tokenizer()
    wanted = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert encode_chat(tokenizer, messages) == wanted


def test_a_conversation_has_one_bos_and_asks_for_the_answer():
    """B20."""
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
def test_text_that_is_no_unicode_is_a_value_error(tokenizer):
    """So that `generate(on_error="return")` fails this prompt alone."""
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


@pytest.mark.parametrize(
    "ids", [[*PEPPER, *PEPPER], [*PEPPER, *PEPPER[:3]], [*PEPPER, 0xFF, 256], [256, *PEPPER[:2]]]
)
def test_a_snapshot_of_many_tokens_reads_like_one_of_each(ids):
    request = Request("r", [256], 1, SamplingParams(max_tokens=20), 21, frozenset(), frozenset())
    often, once = (Transcript([request], byte_fallback()) for _ in range(2))
    pieces = []
    for token in ids:
        request.tokens.append(token)
        pieces.append(often.snapshot().outputs[0].delta_text)
    request.status = Status.FINISHED
    pieces.append(often.snapshot().outputs[0].delta_text)
    assert once.snapshot().outputs[0].text == "".join(pieces)
