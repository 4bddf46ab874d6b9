"""Recover the parameters of `llama3` RoPE scaling from GGUF's tensor of rotary factors.

GGUF stores the divisor of each frequency: 1 for wavelengths below `original / high`, `factor`
above `original / low`, and in between `1 / ((1 - s) / factor + s)` with
`s = (original / wavelength - low) / (high - low)`. Only `original / low` and `original / high`
matter, so `low` can be set to 1 without loss of generality.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

TOLERANCE = 1e-5
USUAL_HIGH = 4.0


def solve_llama3(divisors: np.ndarray, theta: float, head_dim: int) -> dict[str, Any]:
    """Return Hugging Face's `rope_parameters` that produce `divisors`, float [head_dim / 2].

    If several do, prefers `high_freq_factor` 4 and an original context that is a power of two.
    Raises NotImplementedError if none reproduces them with a relative error of at most 1e-5.
    """
    divisors = np.asarray(divisors, np.float64)
    if divisors.shape != (head_dim // 2,):
        raise NotImplementedError(f"has shape {divisors.shape} instead of {(head_dim // 2,)}")
    if np.all(divisors == 1):
        return {"rope_type": "default", "rope_theta": theta}
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    factor = float(divisors.max())
    for original, high in _candidates(divisors, wavelengths, factor):
        again = llama3_divisors(wavelengths, factor, 1.0, high, original)
        if np.allclose(again, divisors, rtol=TOLERANCE, atol=0):
            return {
                "rope_type": "llama3",
                "rope_theta": theta,
                "factor": factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    raise NotImplementedError(
        f"holds factors from {divisors.min()} to {factor} that llama3 scaling cannot produce"
    )


def llama3_divisors(
    wavelengths: np.ndarray, factor: float, low: float, high: float, original: float
) -> np.ndarray:
    """The divisor of the frequency of each wavelength under `llama3` scaling, in float64."""
    smooth = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    return 1 / ((1 - smooth) / factor + smooth)


def _candidates(
    divisors: np.ndarray, wavelengths: np.ndarray, factor: float
) -> Iterator[tuple[int, float]]:
    """Yield pairs of original context and `high_freq_factor`, the common ones first."""
    powers = [2**exponent for exponent in range(2, 24)]
    yield from ((power, USUAL_HIGH) for power in powers)
    blended = (divisors > 1) & (divisors < factor)
    if not blended.any():
        return
    # The blend is most precise in the middle of the band.
    smooth = (1 / divisors - 1 / factor) / (1 - 1 / factor)
    middle = np.argmin(np.where(blended, np.abs(smooth - 0.5), np.inf))
    at, length = smooth[middle], wavelengths[middle]
    highs = {power: 1 + (power / length - 1) / at for power in powers if power > length}
    yield from ((power, round(high)) for power, high in highs.items() if round(high) > 1)
    if blended.sum() > 1:
        # s = (original / wavelength - 1) / (high - 1) is linear in 1 / wavelength.
        slope, shift = np.polyfit(1 / wavelengths[blended], smooth[blended], 1)
        if shift < 0:
            original = max(1, round(-slope / shift))
            yield original, 1 + (original / length - 1) / at
    yield from highs.items()
    original = round(length * (1 + at * (USUAL_HIGH - 1)))
    yield original, 1 + (original / length - 1) / at
