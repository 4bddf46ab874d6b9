"""The sampler's filters by sorting in numpy float64, written from the public contract alone.

Order: temperature, min_p, top_k, top_p. Among equal logits, the lower id ranks first.
"""

import numpy as np


def probabilities(
    logits: np.ndarray,
    temperature: float = 1.0,
    min_p: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> np.ndarray:
    """Return the distribution [V] from which a row of `logits` [V] is drawn."""
    scaled = np.asarray(logits, np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    weights[weights < min_p] = 0
    ranking = np.argsort(-np.asarray(logits, np.float64), kind="stable")
    if 0 < top_k < len(weights):
        weights[ranking[top_k:]] = 0
    weights /= weights.sum()
    mass = np.cumsum(weights[ranking])
    # The token whose cumulative mass reaches top_p is the last one kept.
    if top_p < 1:
        weights[ranking[1:][mass[:-1] >= top_p]] = 0
    return weights / weights.sum()


def reaching(weights: np.ndarray, count: int) -> float:
    """Return a top_p that exactly the `count` largest of `weights` [V] reach, away from ties.

    It lies half-way between the mass of `count - 1` tokens and that of `count`, so that float32
    and float64 agree on it.
    """
    mass = np.concatenate([[0.0], np.cumsum(np.sort(weights)[::-1])]) / weights.sum()
    return float((mass[count - 1] + mass[count]) / 2)


def penalized(
    logits: np.ndarray,
    prompt: list[int],
    output: list[int],
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
) -> np.ndarray:
    """Return a row of `logits` [V] after the penalties."""
    logits = np.array(logits, np.float64)
    for token in {*prompt, *output}:
        logits[token] *= 1 / repetition if logits[token] > 0 else repetition
    for token in output:
        logits[token] -= frequency
    for token in set(output):
        logits[token] -= presence
    return logits
