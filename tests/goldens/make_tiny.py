"""Make the goldens of the tiny models with Hugging Face transformers in float32.

    PEER/bin/python tests/goldens/make_tiny.py

PEER is an environment with torch and transformers. Writes tiny_logits.npz (logits [160, 128] per
variant) and tiny_greedy.json next to this file, after checking both against
tests/support/numpy_llama.py.
"""

import json
import platform
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

import numpy_llama  # noqa: E402 - these two are imported from tests/support
import tiny_models  # noqa: E402

GREEDY_VARIANTS = ("base", "all")
PROMPT_LENGTHS = (5, 17, 40)
NEW_TOKENS = 24
# Tolerance relative to the largest logit, far above float32 rounding through three layers.
TOLERANCE = 1e-5


def main() -> None:
    """Write both golden files."""
    torch.set_grad_enabled(False)
    logits, greedy = {}, {}
    for name in tiny_models.VARIANTS:
        model = load(name)
        logits[name] = checked_logits(name, model)
        if name in GREEDY_VARIANTS:
            greedy[name] = [checked_continuation(name, model, prompt) for prompt in prompts()]
    np.savez_compressed(HERE / "tiny_logits.npz", **logits)
    write_greedy(greedy)


def load(name: str) -> transformers.LlamaForCausalLM:
    """Load variant `name` from a checkpoint folder; no weight may be missing or unused."""
    with tempfile.TemporaryDirectory() as folder:
        tiny_models.write_hf_folder(name, folder)
        model, report = transformers.LlamaForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
    amiss = {kind: keys for kind, keys in report.items() if keys}
    if amiss:
        raise RuntimeError(f"{name}: transformers did not load all weights: {amiss}")
    return model.eval()


def checked_logits(name: str, model: transformers.LlamaForCausalLM) -> np.ndarray:
    """Return the float32 logits [S, V] of the golden tokens, equal to numpy's within TOLERANCE."""
    tokens = tiny_models.golden_tokens()
    logits = model(torch.tensor([tokens])).logits[0].numpy()
    oracle = numpy_forward(name, tokens)
    difference = np.abs(logits - oracle).max()
    relative = difference / np.abs(oracle).max()
    print(f"{name:9} difference {difference:.2e}, relative to the largest logit {relative:.2e}")
    if relative > TOLERANCE:
        raise RuntimeError(f"{name}: Hugging Face and numpy differ by {relative:.2e}")
    return logits


def checked_continuation(
    name: str, model: transformers.LlamaForCausalLM, prompt: list[int]
) -> dict:
    """Return NEW_TOKENS greedy ids after `prompt`, with the gap of the two best logits per step.

    Every step recomputes the whole sequence, so no KV cache can be wrong.
    """
    ids, gaps = list(prompt), []
    for _ in range(NEW_TOKENS):
        best = model(torch.tensor([ids])).logits[0, -1].topk(2)
        if int(best.indices[0]) != int(numpy_forward(name, ids)[-1].argmax()):
            raise RuntimeError(f"{name}: numpy chooses another token at position {len(ids)}")
        ids.append(int(best.indices[0]))
        gaps.append(round(float(best.values[0] - best.values[1]), 6))
    print(f"{name:9} prompt of {len(prompt):2}: smallest gap {min(gaps):.4f}")
    return {"prompt": prompt, "output": ids[len(prompt) :], "top2_gap": gaps}


def numpy_forward(name: str, tokens: list[int]) -> np.ndarray:
    """Return the reference logits [S, V] of `tokens` for variant `name`."""
    return numpy_llama.forward(tiny_models.hf_config(name), tiny_models.hf_tensors(name), tokens)


def prompts() -> list[list[int]]:
    """Return the prompts of the greedy goldens, without the special ids 0 to 2."""
    rng = np.random.RandomState(21)
    return [rng.randint(3, 128, size=length).tolist() for length in PROMPT_LENGTHS]


def write_greedy(greedy: dict[str, list[dict]]) -> None:
    """Write tiny_greedy.json, one request a line to keep diffs readable."""
    about = {
        "script": "tests/goldens/make_tiny.py",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "what": "float32, greedy, eos ignored; top2_gap is the best logit minus the second best",
    }
    lines = [f'"about": {json.dumps(about)}']
    for name, requests in greedy.items():
        rows = ",\n".join(json.dumps(request) for request in requests)
        lines.append(f'"{name}": [\n{rows}\n]')
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (HERE / "tiny_greedy.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
