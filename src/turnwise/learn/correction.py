"""Samples of an older or slightly different policy, weighed so that they stand for the policy that is updated.

In: each token's log-prob just before the update and at sampling time. Out: one weight per token.
"""

from __future__ import annotations

import numpy as np

from turnwise.config.schema_learn import ImportanceCorrection
from turnwise.types import FloatArray


def importance_weights(
    proximal_logprobs: FloatArray, behavior_logprobs: FloatArray, settings: ImportanceCorrection
) -> FloatArray:
    """The ratio of the two, cut off at `cap` (truncated), or 0 where it leaves 1/cap to cap (masked)."""
    ratio = np.exp(np.clip(proximal_logprobs - behavior_logprobs, -20, 20))
    if settings.type == "truncated":
        return np.minimum(ratio, settings.cap)
    return np.where((ratio >= 1 / settings.cap) & (ratio <= settings.cap), ratio, 0.0).astype(np.float32)
