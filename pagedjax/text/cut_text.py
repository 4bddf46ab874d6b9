"""The text of a growing output, up to its first stop string."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from pagedjax.sampling_params import SamplingParams
from pagedjax.text.detokenizer import Detokenizer
from pagedjax.text.stop_strings import StopStrings


class CutText:
    """A Detokenizer whose text ends at the first stop string.

    Each token's text is searched separately, so the end does not depend on how many tokens arrive
    at a time. Stop strings completed by the first `min_tokens` tokens are ignored.
    """

    def __init__(self, detokenizer: Detokenizer, params: SamplingParams) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(params.stop_strings, params.include_stop_str_in_output)
        self._num_unwatched = params.min_tokens
        self.text = ""

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text; None until then."""
        return self._stops.match

    def copy(self) -> CutText:
        """An independent text in the same state."""
        twin = copy.copy(self)
        twin._detokenizer, twin._stops = self._detokenizer.copy(), self._stops.copy()
        return twin

    def append(self, token_ids: Sequence[int], final: bool = False) -> str:
        """Return the text that is certain now; `final` also releases text that was held back."""
        piece = "".join(self._append([token]) for token in token_ids)
        if final:
            piece += self._append([], final) + self._stops.release()
        self.text += piece
        return piece

    def _append(self, token_ids: Sequence[int], final: bool = False) -> str:
        if self.stop_string is not None:
            return ""
        self._num_unwatched -= len(token_ids)
        piece = self._detokenizer.append(token_ids, final)
        return self._stops.append(piece, watch=self._num_unwatched < 0)
