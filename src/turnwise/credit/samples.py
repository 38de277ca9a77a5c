"""Experiences and their credit become Samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnwise.credit.layout import Floats, PlayedTokens
from turnwise.errors import ConfigError
from turnwise.types import Annotations, FloatArray, Sample


def require_values(annotations: Annotations, rule: str) -> Sequence[FloatArray]:
    if annotations.values is None:
        raise ConfigError(
            f"credit.type '{rule}' needs a critic's values and learn.critic.type is 'none'. "
            "Set learn.critic.type to 'value_head' or 'model', or choose a rule without a critic, such as 'grpo'."
        )
    return annotations.values


def make_samples(played: PlayedTokens, advantages: Floats, returns: Floats, annotations: Annotations) -> list[Sample]:
    """Back to rows, in the order in which the experiences were given."""
    empty = [np.zeros(len(e.segment), dtype=np.float32) for e in played.experiences]
    values = annotations.values if annotations.values is not None else empty
    reference = annotations.reference_logprobs if annotations.reference_logprobs is not None else empty
    rows = zip(played.experiences, played.scatter(advantages), played.scatter(returns), values, reference, strict=True)
    return [Sample(experience=e, advantages=a, returns=r, values=v, reference_logprobs=ref) for e, a, r, v, ref in rows]
