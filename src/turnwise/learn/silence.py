"""Which rows have a gradient at all: what cannot change a weight need not be computed.

In: a batch, the settings of learning and the policy loss. Out: rows. A loss is asked with numbers of no meaning, so
that one of the user's own is judged by what it does and not by its name.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from turnwise.config import schema_learn as learning
from turnwise.protocols import PolicyLoss
from turnwise.types import Batch


def is_silent_at_zero(loss: PolicyLoss, settings: learning.LearnSettings) -> bool:
    """Whether tokens with advantages of zero have no gradient, from the policy loss or from anything beside it."""
    has_more = (
        settings.entropy_coef > 0
        or not isinstance(settings.critic, learning.NoCritic)
        or isinstance(settings.kl, learning.KlLoss)
        or not isinstance(settings.ptx, learning.NoPtx)
    )
    return not has_more and _is_loss_silent(loss)


def _is_loss_silent(loss: PolicyLoss) -> bool:
    """Not so for one that imitates what was sampled, whatever it earned."""
    logprobs = torch.tensor([-0.3, -2.0, -0.9, -1.4], requires_grad=True)
    behavior, turns = torch.tensor([-1.5, -0.2, -0.9, -1.0]), torch.tensor([0, 0, 1, 1])
    try:
        per_token, _ = loss(logprobs, behavior, torch.zeros(4), turns)
        per_token.sum().backward()
    except (RuntimeError, ValueError, TypeError):
        # What it does with a real batch is not for this to find out.
        return False
    return logprobs.grad is not None and not logprobs.grad.any()


def rows_that_teach(batch: Batch, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of the rows in which a sampled token has an advantage, in the same order."""
    has_credit = np.add.reduceat(batch.loss_mask & (batch.advantages != 0), batch.row_starts[:-1], dtype=np.int64) > 0
    return rows[has_credit[rows]]
