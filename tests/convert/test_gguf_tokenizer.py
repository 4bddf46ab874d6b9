"""Tokenizers built from GGUF metadata, against goldens for SmolLM2 and on small vocabularies."""

import json
from pathlib import Path

import pytest

from pagedjax.convert import convert, load_checkpoint
from pagedjax.convert.gguf_file import GgufFile, read_gguf
from pagedjax.convert.gguf_tokenizer import build_tokenizer
from pagedjax.convert.tokenizer import load_tokenizer
from tests.support.gguf_files import write_gguf

GOLDENS = json.loads((Path(__file__).parents[1] / "goldens" / "smollm2_tokenizer.json").read_text())
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
SPACE = "\u2581"


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf, tmp_path_factory):
    """The tokenizer from the file, and the same after saving and loading it."""
    first = build_tokenizer(read_gguf(smollm2_gguf))
    folder = tmp_path_factory.mktemp("tokenizer")
    first.save_pretrained(folder)
    return first, load_tokenizer(folder)


def test_smollm2_ids_and_texts(smollm2):
    for tokenizer in smollm2:
        for golden in GOLDENS["texts"]:
            ids = tokenizer(golden["text"])["input_ids"]
            assert ids == golden["ids"], golden["text"]
            assert tokenizer.decode(ids) == golden["decoded"]
            plain = golden.get("decoded_plain", golden["decoded"])
            assert tokenizer.decode(ids, skip_special_tokens=True) == plain


def test_smollm2_chats(smollm2):
    for tokenizer in smollm2:
        for golden in GOLDENS["chats"]:
            options = {key: golden[key] for key in ("add_generation_prompt",) if key in golden}
            options = {"add_generation_prompt": True, **options}
            text = tokenizer.apply_chat_template(golden["messages"], tokenize=False, **options)
            assert text == golden["text"]
            assert tokenizer(text, add_special_tokens=False)["input_ids"] == golden["ids"]


def test_smollm2_named_tokens(smollm2):
    for tokenizer in smollm2:
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
        assert (tokenizer.unk_token_id, tokenizer.pad_token_id) == (0, 2)
        assert len(tokenizer) == 49152


def _file(**metadata):
    template = metadata.pop("chat_template", None)
    made = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    if template is not None:
        made["tokenizer.chat_template"] = template
    return GgufFile(Path("m.gguf"), made, {})


def _saved(tokenizer, folder):
    tokenizer.save_pretrained(folder)
    return load_tokenizer(folder)


def _byte_characters():
    """GPT-2's character of each byte: itself if printable, else the next character from 256 on."""
    prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
    characters, extra = {}, 256
    for byte in range(256):
        characters[byte] = chr(byte if byte in prints else extra)
        extra += byte not in prints
    return characters


def _byte_level_file(**more):
    tokens = list(_byte_characters().values())
    merges = ["1 2", "12 3", "123 4", "a b", "ab c", "\u0120 a"]
    tokens += [merge.replace(" ", "") for merge in merges]
    tokens += ["<bos>", "<eos>", "<tool>"]
    size = len(tokens)
    return _file(
        model="gpt2",
        tokens=tokens,
        token_type=[NORMAL] * (size - 3) + [CONTROL, CONTROL, USER_DEFINED],
        merges=merges,
        bos_token_id=size - 3,
        eos_token_id=size - 2,
        **more,
    )


def _tokens(tokenizer, text, **options):
    return tokenizer.convert_ids_to_tokens(tokenizer(text, **options)["input_ids"])


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["1234", "abc", "\u0120a"]),
        ("default", ["1234", "abc", "\u0120a"]),
        ("smollm", ["1", "2", "3", "4", "abc", "\u0120a"]),
        ("llama-bpe", ["<bos>", "123", "4", "abc", "\u0120a"]),
    ],
)
def test_splits(tmp_path, pre, expected):
    first = build_tokenizer(_byte_level_file(pre=pre))
    for tokenizer in (first, _saved(first, tmp_path)):
        assert _tokens(tokenizer, "1234abc a") == expected
        ids = tokenizer("\u65e5 \U0001f336 x", add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == "\u65e5 \U0001f336 x"


def test_llama3_takes_whole_words_first():
    """A word of the vocabulary is one token, even if no merges lead to it."""
    file = _byte_level_file(pre="llama-bpe")
    file.metadata["tokenizer.ggml.tokens"][258] = "xyz"
    file.metadata["tokenizer.ggml.merges"].remove("123 4")
    file.metadata["tokenizer.ggml.merges"].remove("12 3")
    assert _tokens(build_tokenizer(file), "xyz", add_special_tokens=False) == ["xyz"]


def test_special_and_user_defined_tokens(tmp_path):
    first = build_tokenizer(_byte_level_file(pre="gpt-2", chat_template="{{ messages|length }}"))
    for tokenizer in (first, _saved(first, tmp_path)):
        ids = tokenizer("ab<tool>c<eos>")["input_ids"]
        assert tokenizer.convert_ids_to_tokens(ids) == ["ab", "<tool>", "c", "<eos>"]
        assert tokenizer.decode(ids, skip_special_tokens=True) == "ab<tool>c"
        assert tokenizer.apply_chat_template([{}, {}], tokenize=False) == "2"


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe"])
@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("eos", [True, False])
def test_add_bos_and_add_eos(tmp_path, pre, bos, eos):
    first = build_tokenizer(_byte_level_file(pre=pre, add_bos_token=bos, add_eos_token=eos))
    for tokenizer in (first, _saved(first, tmp_path)):
        assert _tokens(tokenizer, "ab") == ["<bos>"] * bos + ["ab"] + ["<eos>"] * eos
        assert _tokens(tokenizer, "ab", add_special_tokens=False) == ["ab"]
        assert _tokens(tokenizer, "") == ["<bos>"] * bos + ["<eos>"] * eos


def _piece_file(**more):
    pieces = [SPACE, "a", "b", "c", "ab", "bc", f"{SPACE}a", "abc", f"{SPACE}abc"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces)
    # "bc" has a higher score than "ab", so it is merged first.
    scores = [0.0] * 259 + [-9, -9, -9, -9, -2, -1, -5, -3, -4]
    return _file(
        model="llama",
        tokens=["<unk>", "<s>", "</s>", *byte_tokens, *pieces],
        token_type=kinds,
        scores=scores,
        bos_token_id=1,
        eos_token_id=2,
        unknown_token_id=0,
        **more,
    )


def test_sentence_piece(tmp_path):
    first = build_tokenizer(_piece_file())
    for tokenizer in (first, _saved(first, tmp_path)):
        assert _tokens(tokenizer, "abc") == ["<s>", f"{SPACE}abc"]
        assert _tokens(tokenizer, "bab") == ["<s>", SPACE, "b", "ab"]
        assert _tokens(tokenizer, "a\u00e9") == ["<s>", f"{SPACE}a", "<0xC3>", "<0xA9>"]
        for text in ("abc bab", " a  b ", "x\u65e5\n", ""):
            ids = tokenizer(text)["input_ids"]
            assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_sentence_piece_without_prefix(tmp_path):
    first = build_tokenizer(_piece_file(add_space_prefix=False, add_bos_token=False))
    for tokenizer in (first, _saved(first, tmp_path)):
        assert _tokens(tokenizer, "abc a") == ["abc", f"{SPACE}a"]
        assert tokenizer.decode(tokenizer(" abc")["input_ids"]) == " abc"


def test_duplicate_pieces_are_merged_by_their_texts():
    tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab", "a", "c", "abc"]
    scores = [0.0] * 5 + [-1.0, 0.0, 0.0, -2.0]
    file = _file(
        model="llama", tokens=tokens, scores=scores, token_type=[NORMAL] * 9, unknown_token_id=0,
        add_bos_token=False, add_space_prefix=False,
    )  # fmt: skip
    assert _tokens(build_tokenizer(file), "abc") == ["abc"]


@pytest.mark.parametrize("name", ["bos", "eos", "unknown"])
def test_a_named_token_outside_the_vocabulary_is_refused(name):
    options = {f"{name}_token_id": 99}
    file = _file(model="llama", tokens=["<unk>", "a"], scores=[0.0, 0.0], **options)
    with pytest.raises(ValueError, match=f"m.gguf: tokenizer.ggml.{name}_token_id=99 is none of"):
        build_tokenizer(file)


def test_padding_outside_the_vocabulary_is_dropped():
    file = _byte_level_file(padding_token_id=100_000)
    assert build_tokenizer(file).pad_token is None


def test_unsupported_kinds_are_named():
    with pytest.raises(NotImplementedError, match="model='t5'.*'gpt2', 'llama'"):
        build_tokenizer(_file(model="t5", tokens=["a"]))
    with pytest.raises(NotImplementedError, match="pre='qwen2'.*'smollm'"):
        build_tokenizer(_byte_level_file(pre="qwen2"))
    with pytest.raises(ValueError, match="tokenizer.ggml.merges"):
        build_tokenizer(_file(model="gpt2", tokens=["a"]))


def test_file_without_a_tokenizer():
    assert build_tokenizer(_file(bos_token_id=1)) is None


def test_same_tokenizer_from_file_and_converted_folder(tmp_path):
    """Written to a GGUF file with a chat template."""
    made = _byte_level_file(pre="llama-bpe", chat_template="{{ messages[0].content }}").metadata

    def edit(writer):
        for key, value in made.items():
            if isinstance(value, list):
                writer.add_array(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)

    write_gguf("base", tmp_path / "m.gguf", edit=edit)
    convert(tmp_path / "m.gguf", tmp_path / "out", progress=False)
    for path in ("m.gguf", "out"):
        _, _, tokenizer = load_checkpoint(tmp_path / path)
        # `write_gguf` has set the BOS and EOS ids to 1 and 2, so the first id is skipped.
        assert tokenizer("abc")["input_ids"][1:] == [tokenizer.convert_tokens_to_ids("abc")]
        text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
        assert text == "hi"
