"""Whether an update can be made from a batch: something was sampled, and every number of a sampled token is one.

A gradient that is not finite has many fathers; those that came in with the batch are named here, before a weight moves.
"""

from __future__ import annotations

import numpy as np

from turnwise.errors import LearnError
from turnwise.types import Batch

_CAUSES = {
    "behavior_logprobs": "the engine that sampled them has recorded no probabilities; look at its weights",
    "reference_logprobs": "the reference model gives no probabilities; look at learn.kl and its weights",
    "values": "the critic has diverged; lower the learning rate in learn.critic",
    "returns": "rewards are not finite, or too large for float32; scale them down",
    "advantages": "rewards are not finite, or too large for float32; scale them down",
}
"""In the order of the pipeline: what is broken first breaks all that follows."""


def refuse_unsound(batch: Batch) -> None:
    """Raise LearnError for a batch that no update can be made from; the weights are as they were."""
    if not batch.loss_mask.any():
        raise LearnError("the batch has no sampled tokens; nothing can be learnt from it.")
    for name, cause in _CAUSES.items():
        is_broken = ~np.isfinite(getattr(batch, name)) & batch.loss_mask
        if is_broken.any():
            token = int(np.argmax(is_broken))
            row = int(np.searchsorted(batch.row_starts, token, side="right")) - 1
            raise LearnError(
                f"{int(is_broken.sum())} of {int(batch.loss_mask.sum())} sampled tokens have {name} that are not "
                f"finite, the first is token {token - int(batch.row_starts[row])} of row {row}, turn "
                f"{int(batch.turn_ids[token])}: {getattr(batch, name)[token]}. No update was made. Probably {cause}."
            )
