"""A reply that is cut where a text stops it."""

from __future__ import annotations

import numpy as np

from turnwise.context.recorder import cut_at_stop
from turnwise.types import Alternatives, Completion, FinishReason


def test_a_reply_that_is_cut_keeps_what_is_told_about_the_tokens_left() -> None:
    completion = Completion(
        token_ids=np.arange(4, dtype=np.int32),
        behavior_logprobs=-np.arange(4, dtype=np.float32),
        finish_reason=FinishReason.LENGTH,
        policy_version=0,
        alternatives=Alternatives.of([([token, token + 10], [-0.5, -1.0]) for token in range(4)]),
    )
    cut = cut_at_stop(completion, ("c",), lambda ids: "".join("abcd"[token] for token in ids))
    assert (cut.token_ids.tolist(), cut.behavior_logprobs.tolist()) == ([0, 1, 2], [0, -1, -2])
    assert cut.alternatives is not None
    assert cut.alternatives.token_ids.tolist() == [[0, 10], [1, 11], [2, 12]]
    assert cut.finish_reason is FinishReason.STOP
