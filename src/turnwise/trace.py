"""What an update saw of every token of its batch: the way from the learner to the learning record.

Plain arrays, without the names of what they are about; those are in the Batch they belong to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UpdateTrace:
    """In the order of the Batch; per-token arrays are 0 off its loss mask.

    Example, two epochs over `Right <end>` after a good episode: `first_ratios=[1, 1]`, `last_ratios=[1.3, 1.1]`,
    `is_clipped=[True, False]`.
    """

    proximal_logprobs: NDArray[np.float32]
    """Under the learner's weights when this update first met the token."""
    proximal_steps: NDArray[np.int32]
    """[rows] how many optimizer steps of this update those weights had behind them; 0: the policy before the update."""
    first_ratios: NDArray[np.float32]
    """The loss's ratio in the first epoch; that of a loss without one is policy over behaviour."""
    last_ratios: NDArray[np.float32]
    """The same in the last epoch."""
    entropies: NDArray[np.float32]
    """Of the whole distribution the token was drawn from, in the first epoch."""
    is_clipped: NDArray[np.bool_]
    """Whether the loss clipped it in the last epoch; a loss that says nothing about it clips none."""
    first_losses: NDArray[np.float32] | None = None
    """What the token added to the sum that was minimised, in the first epoch; it is not written down."""
    first_distances: NDArray[np.float32] | None = None
    """How far it was from the reference by the loss's own estimate, in the first epoch; NaN where the loss has none."""

    def __post_init__(self) -> None:
        per_token = (self.proximal_logprobs, self.first_ratios, self.last_ratios, self.entropies, self.is_clipped)
        if len(lengths := {len(array) for array in per_token}) > 1:
            raise ValueError(f"UpdateTrace: per-token arrays differ in length: {sorted(lengths)}")
