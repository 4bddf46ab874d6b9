"""Make the beam search goldens of the tiny models with Hugging Face transformers in float32.

    PEER/bin/python tests/goldens/make_beam.py

PEER is an environment with torch and transformers. Writes tiny_beam.json next to this file: the
beams that `generate` returns for each case of CASES, best first, after checking every score against
tests/support/numpy_llama.py. Cases whose beams change with rounding are left out.
"""

import json
import platform
from pathlib import Path

import make_tiny
import numpy as np
import torch
import transformers

HERE = Path(__file__).resolve().parent

# Variant, prompt length, beam width, max tokens, length penalty, whether there is an EOS.
CASES = (
    ("base", 1, 2, 1, 1.0, False),
    ("base", 5, 3, 1, 2.0, True),
    ("base", 5, 2, 6, 1.0, True),
    ("base", 17, 3, 6, 0.0, True),
    ("base", 17, 4, 6, 2.0, False),
    ("base", 1, 4, 12, 0.0, True),
    ("base", 5, 4, 12, 1.0, True),
    ("base", 17, 2, 12, 0.0, True),
    ("base", 1, 3, 12, 2.0, True),
    ("bias", 17, 4, 1, 0.0, True),
    ("bias", 1, 3, 6, 0.0, False),
    ("bias", 5, 4, 6, 1.0, True),
    ("bias", 17, 2, 6, 2.0, True),
    ("bias", 1, 2, 12, 1.0, True),
    ("bias", 5, 3, 12, 0.0, True),
    ("bias", 17, 3, 12, 1.0, True),
    ("bias", 5, 2, 12, 2.0, False),
    ("all", 5, 4, 1, 1.0, False),
    ("all", 1, 2, 6, 0.0, True),
    ("all", 5, 3, 6, 2.0, True),
    ("all", 17, 4, 6, 1.0, True),
    ("all", 1, 3, 12, 1.0, True),
    ("all", 5, 2, 12, 0.0, True),
    ("all", 17, 4, 12, 0.0, True),
    ("all", 17, 4, 12, 2.0, True),
    ("all", 17, 3, 12, 1.0, False),
)
# EOS is chosen among the tokens at these positions: early, but after the beams have diverged.
EOS_PLACES = slice(1, 3)
# Relative noise on all parameters, about eight float32 roundings, that must not change a beam.
NOISE = 1e-6
# float32 sums of twelve log probabilities, divided by a power of the length.
TOLERANCE = 1e-4


def main() -> None:
    """Write the golden file."""
    torch.set_grad_enabled(False)
    rows = []
    for name in dict.fromkeys(case[0] for case in CASES):
        model, shaken = make_tiny.load(name), perturbed(make_tiny.load(name))
        for index, case in enumerate(CASES):
            if case[0] == name:
                row = golden(model, index, *case)
                if sequences_hold(shaken, row):
                    rows.append(row)
    write(rows)


def perturbed(model: transformers.LlamaForCausalLM) -> transformers.LlamaForCausalLM:
    """Multiply each parameter in place by one plus normal noise of size NOISE; return `model`."""
    generator = torch.Generator().manual_seed(31)
    for parameter in model.parameters():
        parameter.mul_(1.0 + NOISE * torch.randn(parameter.shape, generator=generator))
    return model


def golden(
    model: transformers.LlamaForCausalLM,
    seed: int,
    name: str,
    length: int,
    width: int,
    max_tokens: int,
    penalty: float,
    ends: bool,
) -> dict:
    """Return one case with its sequences and scores; its prompt has no special ids (0 to 2)."""
    row = {
        "variant": name,
        "prompt": np.random.RandomState(200 + seed).randint(3, 128, size=length).tolist(),
        "beam_width": width,
        "max_tokens": max_tokens,
        "length_penalty": penalty,
        "eos_token_id": None,
    }
    if ends:
        row["eos_token_id"] = chosen_eos(model, row)
    sequences, scores = beams(model, row)
    check_scores(row, sequences, scores)
    return row | {"sequences": sequences, "scores": scores}


def chosen_eos(model: transformers.LlamaForCausalLM, row: dict) -> int:
    """Return the token that, as EOS, ends the most returned beams early; ties: the most at all.

    Candidates are the tokens at EOS_PLACES of a run without EOS, or the first tokens of beams that
    are too short for that.
    """
    endless, _ = beams(model, row)
    tokens = [token for ids in endless for token in (ids[EOS_PLACES] or ids)]

    def ended(token: int) -> tuple[int, int]:
        sequences, _ = beams(model, row | {"eos_token_id": token})
        early = sum(len(ids) < row["max_tokens"] for ids in sequences)
        return early, sum(ids[-1] == token for ids in sequences)

    return max(dict.fromkeys(tokens), key=ended)


def beams(model: transformers.LlamaForCausalLM, row: dict) -> tuple[list[list[int]], list[float]]:
    """Return the new tokens of every returned beam, best first and cut after EOS, and the scores.

    The explicit mask keeps generate from taking a token of the prompt for padding.
    """
    prompt = torch.tensor([row["prompt"]])
    result = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        num_beams=row["beam_width"],
        num_return_sequences=row["beam_width"],
        do_sample=False,
        length_penalty=row["length_penalty"],
        early_stopping=False,
        max_new_tokens=row["max_tokens"],
        eos_token_id=row["eos_token_id"],
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    new = result.sequences[:, prompt.shape[1] :].tolist()
    sequences = [cut(ids, row["eos_token_id"]) for ids in new]
    return sequences, result.sequences_scores.double().tolist()


def cut(ids: list[int], eos: int | None) -> list[int]:
    """Return `ids` up to and including the first `eos`, without the padding after it."""
    return ids[: ids.index(eos) + 1] if eos in ids else ids


def check_scores(row: dict, sequences: list[list[int]], scores: list[float]) -> None:
    """Raise unless each score is the summed log probability / (number of new tokens) ** penalty."""
    for ids, score in zip(sequences, scores, strict=True):
        whole = row["prompt"] + ids
        logits = torch.from_numpy(make_tiny.numpy_forward(row["variant"], whole[:-1]))
        steps = logits.log_softmax(-1)[len(row["prompt"]) - 1 :, :]
        total = sum(float(step[token]) for step, token in zip(steps, ids, strict=True))
        difference = abs(total / len(ids) ** row["length_penalty"] - score)
        if difference > TOLERANCE:
            raise RuntimeError(f"{row['variant']}: a score is {difference:.2e} off numpy's")


def sequences_hold(shaken: transformers.LlamaForCausalLM, row: dict) -> bool:
    """Return, and print, whether the perturbed model finds the same beams in the same order."""
    holds = beams(shaken, row)[0] == row["sequences"]
    ended = sum(ids[-1] == row["eos_token_id"] for ids in row["sequences"])
    settings = [row[key] for key in ("beam_width", "max_tokens", "length_penalty", "eos_token_id")]
    print(
        f"{row['variant']:5} prompt of {len(row['prompt']):2}, {settings}:"
        f" {ended} ended, lengths {[len(ids) for ids in row['sequences']]}"
        + ("" if holds else "; left out, because it hangs on rounding")
    )
    return holds


def write(rows: list[dict]) -> None:
    """Write tiny_beam.json, one case a line to keep diffs readable."""
    about = {
        "script": "tests/goldens/make_beam.py",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "what": "float32 beam search, early_stopping False; beams best first, cut after EOS",
    }
    cases = ",\n".join(json.dumps(row) for row in rows)
    text = f'{{\n"about": {json.dumps(about)},\n"cases": [\n{cases}\n]\n}}\n'
    (HERE / "tiny_beam.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
