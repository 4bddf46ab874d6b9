"""Text of tokens as they arrive: whole characters, spaces between words, and special tokens."""

import random

import pytest
from tokenizers import Tokenizer, decoders, models

from pagedjax.sampling_params import SamplingParams
from pagedjax.schedule.request import Request, Status
from pagedjax.text.detokenizer import Detokenizer
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
    """Mostly parts of UTF-8 characters, valid or not, mixed with special tokens."""
    rng = random.Random(seed)
    parts = [[rng.randrange(256)], PEPPER[: rng.randrange(5)], list("é€".encode()), [BOS], [0x80]]
    return [i for _ in range(rng.randrange(30)) for i in rng.choice(parts)]


def random_text(seed):
    rng = random.Random(seed)
    return list("".join(rng.choices(ALPHABET, k=rng.randrange(40))).encode())


def test_a_character_is_released_with_its_last_byte():
    assert deltas([*PEPPER, ord("!")]) == ["", "", "", "\U0001f336", "!"]


def test_a_character_of_three_bytes_in_two_tokens_of_one_call():
    assert deltas(list("a€b".encode()), size=2) == ["", "a€", "b"]


def test_output_that_ends_within_a_character_ends_in_one_replacement():
    assert deltas(PEPPER[:3]) == ["", "", "\ufffd"]


def test_held_text_is_released_by_a_final_call_without_tokens():
    detokenizer = Detokenizer(ByteTokenizer(), [])
    detokenizer.append([ord("a"), *PEPPER[:2]])
    assert detokenizer.append([], final=True) == "a\ufffd"


def test_a_final_call_without_tokens_adds_nothing_to_whole_text():
    detokenizer = Detokenizer(ByteTokenizer(), [ord("x")])
    detokenizer.append([ord("a")])
    assert detokenizer.append([], final=True) == ""


def test_a_character_that_begins_in_the_prompt_adds_no_text_of_the_prompt():
    """The output is decoded by itself, so it does not contain that character."""
    prompt = [*b"What is this? ", *PEPPER[:2]]
    assert "".join(deltas(PEPPER[2:], prompt)) == one_shot(PEPPER[2:])


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("prompt", [[], [BOS, *b"Hi "]], ids=["no prompt", "prompt"])
def test_deltas_of_random_bytes_add_up_to_one_decode(prompt, size):
    for seed in range(200):
        ids = random_bytes(seed)
        assert "".join(deltas(ids, prompt, size)) == one_shot(ids), ids


@pytest.mark.parametrize("size", [1, 3])
def test_deltas_of_random_text_add_up_to_the_text(size):
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


def test_deltas_add_up_to_the_text():
    detokenizer = Detokenizer(ByteTokenizer(), [ord("x")])
    added = "".join(detokenizer.append([byte]) for byte in [*b"ab", *PEPPER])
    assert detokenizer.text == added == "ab\U0001f336"


def test_a_replacement_character_in_the_text_itself_is_kept():
    assert "".join(deltas(list("a\ufffdb".encode()))) == "a\ufffdb"


def byte_fallback():
    """A tokenizer with the decoder of Llama 2 and Mistral: ids below 256 are bytes, 256 is " a".

    If a run of byte tokens contains an invalid byte, the decoder replaces every byte of the run.
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
    """Also if the detokenizer's context begins within a character."""
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
    """If only special tokens precede it, SentencePiece drops the first space of a text."""
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
