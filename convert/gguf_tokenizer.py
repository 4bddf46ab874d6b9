"""Build a `transformers` tokenizer from GGUF metadata, which has a vocabulary but no pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .gguf_file import GgufFile
from .quiet_transformers import import_transformers

PREFIX = "tokenizer.ggml."
# Token types in the metadata.
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
SPECIAL = (UNKNOWN, CONTROL)
# Pre-tokenizer split of LLaMA 3 (arXiv 2407.21783): contractions, words, up to three digits,
# punctuation with line ends, line ends, all but the last of several spaces, other spaces.
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2 = ("default", "gpt-2")
SMOLLM = ("smollm",)
LLAMA3 = ("llama-bpe", "llama3", "llama-v3")
PIECE_SPACE = "\u2581"


def build_tokenizer(file: GgufFile) -> Any:
    """Return the file's tokenizer as `transformers.PreTrainedTokenizerFast`; None if it has none.

    Raises NotImplementedError for an unsupported kind and ValueError for missing metadata.
    """
    metadata = {
        key.removeprefix(PREFIX): value
        for key, value in file.metadata.items()
        if key.startswith(PREFIX)
    }
    if not metadata.get("tokens"):
        return None
    _settle_named_tokens(file, metadata)
    kind = metadata.get("model")
    if kind == "gpt2":
        tokenizer = _byte_level(file, metadata)
    elif kind == "llama":
        tokenizer = _sentence_piece(file, metadata)
    else:
        raise NotImplementedError(
            f"{file.path}: {PREFIX}model={kind!r} is not supported; supported: 'gpt2', 'llama'"
        )
    _add_tokens(tokenizer, metadata)
    _add_template(tokenizer, metadata)
    return import_transformers().PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        chat_template=file.metadata.get("tokenizer.chat_template"),
        **_named_tokens(metadata),
    )


def _byte_level(file: GgufFile, metadata: Mapping[str, Any]) -> Any:
    from tokenizers import Tokenizer, decoders, models, processors

    merges = [_pair(merge) for merge in _required(file, metadata, "merges")]
    pre = metadata.get("pre", "default")
    tokenizer = Tokenizer(models.BPE(_vocabulary(metadata), merges, ignore_merges=pre in LLAMA3))
    tokenizer.pre_tokenizer = _pre_tokenizer(file, pre)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pre_tokenizer(file: GgufFile, pre: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre not in LLAMA3)
    if pre in GPT2:
        return byte_level
    if pre in SMOLLM:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if pre in LLAMA3:
        split = pre_tokenizers.Split(Regex(LLAMA3_SPLIT), behavior="isolated")
        return pre_tokenizers.Sequence([split, byte_level])
    supported = ", ".join(map(repr, GPT2 + SMOLLM + LLAMA3))
    raise NotImplementedError(
        f"{file.path}: {PREFIX}pre={pre!r} is not supported; supported: {supported}"
    )


def _sentence_piece(file: GgufFile, metadata: Mapping[str, Any]) -> Any:
    """SentencePiece BPE: merges by score, with byte fallback for text not in the vocabulary."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocabulary = _vocabulary(metadata)
    merges = _merges(vocabulary, _required(file, metadata, "scores"))
    unknown = metadata["tokens"][metadata.get("unknown_token_id", 0)]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefixed = metadata.get("add_space_prefix", True)
    spaces = [normalizers.Replace(" ", PIECE_SPACE)]
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(PIECE_SPACE), *spaces] if prefixed else spaces
    )
    parts = [decoders.Replace(PIECE_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(
        [*parts, decoders.Strip(content=" ", left=1)] if prefixed else parts
    )
    return tokenizer


def _merges(vocabulary: Mapping[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """All merges of two pieces into a third, sorted by the score of the third, best first."""
    found = [
        (-scores[index], vocabulary[piece[:cut]], vocabulary[piece[cut:]])
        for piece, index in vocabulary.items()
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    # A dict and not a list: ids have gaps where a damaged file repeats a piece.
    pieces = {index: piece for piece, index in vocabulary.items()}
    return [(pieces[left], pieces[right]) for _, left, right in sorted(found)]


def _vocabulary(metadata: Mapping[str, Any]) -> dict[str, int]:
    return {token: index for index, token in enumerate(metadata["tokens"])}


def _pair(merge: str) -> tuple[str, str]:
    # A piece contains no space, except as its first character in a damaged file: skip that.
    left, _, right = merge[1:].partition(" ")
    return merge[0] + left, right


def _add_tokens(tokenizer: Any, metadata: Mapping[str, Any]) -> None:
    """Add the tokens that are matched as a whole before the text is split."""
    from tokenizers import AddedToken

    kinds = metadata.get("token_type") or []
    chosen = [
        AddedToken(token, special=kind in SPECIAL, normalized=False)
        for token, kind in zip(metadata["tokens"], kinds, strict=False)
        if kind in (*SPECIAL, USER_DEFINED)
    ]
    tokenizer.add_tokens(chosen)


def _add_template(tokenizer: Any, metadata: Mapping[str, Any]) -> None:
    """Add BOS before and EOS after a text if the metadata, or by default the kind, requires it."""
    from tokenizers import processors

    usual = metadata["model"] == "llama" or metadata.get("pre") in LLAMA3
    bos = metadata.get("bos_token_id") if metadata.get("add_bos_token", usual) else None
    eos = metadata.get("eos_token_id") if metadata.get("add_eos_token", False) else None
    if bos is None and eos is None:
        return
    names = {index: metadata["tokens"][index] for index in (bos, eos) if index is not None}
    # A list, because the string form cannot express tokens that contain a space or a colon.
    before, after = ([names[each]] if each is not None else [] for each in (bos, eos))
    template = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *(f"{each}:1" for each in before), "$B:1",
              *(f"{each}:1" for each in after)],
        special_tokens=[(token, index) for index, token in names.items()],
    )  # fmt: skip
    earlier = tokenizer.post_processor
    tokenizer.post_processor = (
        processors.Sequence([earlier, template]) if earlier is not None else template
    )


def _named_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    return {
        f"{short}_token": metadata["tokens"][metadata[f"{name}_token_id"]]
        for name, short in names.items()
        if metadata.get(f"{name}_token_id") is not None
    }


def _settle_named_tokens(file: GgufFile, metadata: dict[str, Any]) -> None:
    """Check the special token ids: drop an invalid padding id, which is unused; reject others."""
    count = len(metadata["tokens"])
    for name in ("padding", "bos", "eos", "unknown"):
        key = f"{name}_token_id"
        if metadata.get(key) is None or 0 <= metadata[key] < count:
            continue
        if name != "padding":
            raise ValueError(
                f"{file.path}: {PREFIX}{key}={metadata[key]} is none of its {count} tokens"
            )
        del metadata[key]


def _required(file: GgufFile, metadata: Mapping[str, Any], name: str) -> Any:
    if metadata.get(name) is None:
        raise ValueError(f"{file.path} has no metadata {PREFIX + name!r}")
    return metadata[name]
