"""Make the goldens of SmolLM2-135M-Instruct with Hugging Face transformers in float32.

    PEER/bin/python tests/goldens/make_smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf

PEER is an environment with torch, transformers and gguf. The weights come through transformers'
own GGUF loader. The token ids come from a tokenizer built here from the file's vocabulary and
merges, because transformers' GGUF tokenizer lacks the model's split at digits. Writes
smollm2_greedy.json, smollm2_logprobs.npz and smollm2_tokenizer.json next to this file.
"""

import argparse
import json
import platform
import time
from pathlib import Path

import gguf
import numpy as np
import tokenizers
import torch
import transformers
from smollm2_texts import CHAT_PROMPTS, LONG_TEXT, RAW_PROMPTS, TOKENIZER_CHATS, TOKENIZER_TEXTS
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
SCORED_TOKENS = 1500
NEW_TOKENS = 40
# gguf's token_type of control tokens such as <|im_start|>, which no text merges into.
CONTROL = 3


def main() -> None:
    """Write the three golden files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gguf", type=Path, help="SmolLM2-135M-Instruct as GGUF")
    path = parser.parse_args().gguf
    torch.set_grad_enabled(False)
    tokenizer = load_tokenizer(path)
    write_tokenizer(path, tokenizer)
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    write_greedy(model, tokenizer)
    write_logprobs(model, tokenizer)


def load_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """Build the tokenizer that SmolLM2's authors define from the metadata of the GGUF at `path`."""
    reader = gguf.GGUFReader(path)
    tokens, merges, types, template = (
        reader.fields[key].contents()
        for key in (
            "tokenizer.ggml.tokens",
            "tokenizer.ggml.merges",
            "tokenizer.ggml.token_type",
            "tokenizer.chat_template",
        )
    )
    vocab = {token: index for index, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    core = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=pairs, unk_token=None))
    core.pre_tokenizer = digits_then_bytes()
    core.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    core.add_special_tokens([tokenizers.AddedToken(t, normalized=False) for t in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, chat_template=template, clean_up_tokenization_spaces=False
    )


def digits_then_bytes() -> pre_tokenizers.PreTokenizer:
    """Return the pre-tokenizer that the GGUF calls "smollm": each digit alone, then GPT-2's."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )


def write_tokenizer(path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write smollm2_tokenizer.json, noting where transformers' own GGUF tokenizer differs."""
    own = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    note = f"transformers' own has the pre-tokenizer {own.backend_tokenizer.pre_tokenizer}"
    texts = [encoded(text, tokenizer, own) for text in TOKENIZER_TEXTS]
    # With the digit split added, transformers' own must agree on every text: a check on both.
    own.backend_tokenizer.pre_tokenizer = digits_then_bytes()
    for text in [*TOKENIZER_TEXTS, LONG_TEXT]:
        if encode(own, text) != encode(tokenizer, text):
            raise RuntimeError(f"the two tokenizers differ on {text!r}")
    chats = [rendered(chat, tokenizer, own) for chat in TOKENIZER_CHATS]
    about = versions() | {
        "tokenizer": "made of the GGUF's vocabulary and merges with the pre-tokenizer "
        "Sequence(Digits(individual_digits=True), ByteLevel(add_prefix_space=False)), no BOS",
        "gguf_loader_ids": f"{note}; present where it gives other ids, which are wrong",
        "decoded_plain": "decoded without special tokens; present where it differs",
    }
    write_json("smollm2_tokenizer.json", about, {"texts": texts, "chats": chats})
    wrong = [row["text"] for row in texts if "gguf_loader_ids" in row]
    print(f"{note}\nit differs on {len(wrong)} of {len(texts)} texts: {wrong}")


def encoded(text: str, tokenizer: PreTrainedTokenizerFast, own: PreTrainedTokenizerFast) -> dict:
    """Return one text with its ids, their decoded text, and `own`'s ids if they differ."""
    ids = encode(tokenizer, text)
    row = {"text": text, "ids": ids, "decoded": tokenizer.decode(ids)}
    plain = tokenizer.decode(ids, skip_special_tokens=True)
    if plain != row["decoded"]:
        row["decoded_plain"] = plain
    if encode(own, text) != ids:
        row["gguf_loader_ids"] = encode(own, text)
    return row


def rendered(
    chat: list[dict], tokenizer: PreTrainedTokenizerFast, own: PreTrainedTokenizerFast
) -> dict:
    """Return one chat as text and as ids; both tokenizers must agree on them."""
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.apply_chat_template(chat, tokenize=True, add_generation_prompt=True)
    if own.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) != text:
        raise RuntimeError(f"the two chat templates differ on {chat}")
    if list(ids["input_ids"]) != encode(own, text):
        raise RuntimeError(f"the rendered chat has other ids than its text: {chat}")
    return {"messages": chat, "text": text, "ids": list(ids["input_ids"])}


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Return the ids of `text` without added tokens; special tokens in the text are recognised."""
    return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


def write_greedy(model: transformers.LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write smollm2_greedy.json: every prompt continued by NEW_TOKENS greedy tokens."""
    texts = [(text, False) for text in RAW_PROMPTS]
    for chat in CHAT_PROMPTS:
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        texts.append((text, True))
    rows = []
    for text, is_chat in texts:
        prompt = encode(tokenizer, text)
        output, gaps = continuation(model, prompt)
        answer = tokenizer.decode(output)
        row = {"text": text, "chat": is_chat, "prompt": prompt, "output": output}
        rows.append(row | {"output_text": answer, "top2_gap": gaps})
        print(f"{len(prompt):4} tokens, smallest gap {min(gaps):.4f}: {answer!r}")
    about = versions() | {
        "what": f"float32, greedy, {NEW_TOKENS} tokens, eos (id 2) ignored, so that ids after it "
        "are defined; top2_gap is the best logit minus the second best at each step"
    }
    write_json("smollm2_greedy.json", about, {"requests": rows})


def continuation(
    model: transformers.LlamaForCausalLM, prompt: list[int]
) -> tuple[list[int], list[float]]:
    """Return NEW_TOKENS greedy ids after `prompt` and the gap of the two best logits per step."""
    ids, gaps, cache, inputs = [], [], None, torch.tensor([prompt])
    for _ in range(NEW_TOKENS):
        result = model(inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
        best, cache = result.logits[0, -1].topk(2), result.past_key_values
        ids.append(int(best.indices[0]))
        gaps.append(round(float(best.values[0] - best.values[1]), 6))
        inputs = torch.tensor([ids[-1:]])
    return ids, gaps


def write_logprobs(
    model: transformers.LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Write smollm2_logprobs.npz: `tokens` [S] and `logprobs` [S - 1] of each next token."""
    tokens = encode(tokenizer, LONG_TEXT)[:SCORED_TOKENS]
    if len(tokens) < SCORED_TOKENS:
        raise RuntimeError(f"long_text.txt has {len(tokens)} tokens, fewer than {SCORED_TOKENS}")
    logits = model(torch.tensor([tokens])).logits[0, :-1]
    following = torch.tensor(tokens[1:])[:, None]
    logprobs = logits.double().log_softmax(-1).gather(1, following)[:, 0].float().numpy()
    np.savez_compressed(
        HERE / "smollm2_logprobs.npz", tokens=np.asarray(tokens, np.int32), logprobs=logprobs
    )
    print(f"{len(tokens)} tokens scored, mean logprob {logprobs.mean():.4f}")


def versions() -> dict[str, str]:
    """Return the script and the library versions that made the file."""
    return {
        "script": "tests/goldens/make_smollm2.py",
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def write_json(name: str, about: dict[str, str], lists: dict[str, list[dict]]) -> None:
    """Write `about` and named lists to file `name`, one entry a line to keep diffs readable."""
    parts = [f'"about": {json.dumps(about)}']
    for key, rows in lists.items():
        parts.append(f'"{key}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]")
    (HERE / name).write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    start = time.perf_counter()
    main()
    print(f"{time.perf_counter() - start:.0f} s")
