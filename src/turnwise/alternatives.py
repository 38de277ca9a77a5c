"""What else a model could have said: the likeliest tokens at every place of a reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

MAX_ALTERNATIVES = 20
"""What every engine that tells them tells; more is asked at one's own risk."""
IMPOSSIBLE_LOGPROB = -9999.0
"""How OpenAI's APIs write minus infinity, for which JSON has no word."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Alternatives:
    """Per token of a completion, the likeliest first, of the distribution that the token was drawn from.

    A greedy reply was drawn from none: its alternatives are those of the model at temperature 1. Example for `Right
    <end>`, two asked for: `token_ids=[[Right, Down], [<end>, Up]]`, `logprobs=[[-1.2, -1.3], [-0.1, -4.0]]`.
    """

    token_ids: NDArray[np.int32]
    """[tokens, alternatives]; fewer than were asked for where the vocabulary has no more."""
    logprobs: NDArray[np.float32]
    """Of the same shape; minus infinity where top-k or top-p left no other token to draw."""

    def __post_init__(self) -> None:
        if self.token_ids.ndim != 2 or self.token_ids.shape != self.logprobs.shape:
            raise ValueError(f"Alternatives: ids {self.token_ids.shape} and log-probs {self.logprobs.shape} differ")

    def __len__(self) -> int:
        return len(self.token_ids)

    @classmethod
    def of(cls, rows: list[tuple[list[int], list[float]]]) -> Self:
        """From the ids and log-probs at each place."""
        shape = len(rows), len(rows[0][0]) if rows else 0
        return cls(
            token_ids=np.asarray([ids for ids, _ in rows], dtype=np.int32).reshape(shape),
            logprobs=np.asarray([logprobs for _, logprobs in rows], dtype=np.float32).reshape(shape),
        )

    def first(self, num_tokens: int) -> Self:
        """Those of a reply that is cut there."""
        return type(self)(token_ids=self.token_ids[:num_tokens], logprobs=self.logprobs[:num_tokens])
