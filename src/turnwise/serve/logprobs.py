"""Log-probs of sampled tokens, in the words that both of OpenAI's APIs share.

In: a response. Out: one entry per sampled token, the end of turn included, whose text is empty. It refuses to know
which API asks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from turnwise.context.recorder import Response
from turnwise.types import IMPOSSIBLE_LOGPROB, IntArray


def token_logprobs(response: Response, decode: Callable[[IntArray], str]) -> list[dict[str, Any]]:
    """With the likeliest tokens at each place where they were asked for."""
    likeliest = response.completion.alternatives

    def write(token: int, logprob: float) -> dict[str, Any]:
        text = decode(np.array([token], dtype=np.int32))
        return {"token": text, "logprob": logprob if math.isfinite(logprob) else IMPOSSIBLE_LOGPROB, "bytes": None}

    entries = []
    for place, (token, logprob) in enumerate(zip(response.tokens.tolist(), response.logprobs.tolist(), strict=True)):
        others = (
            []
            if likeliest is None
            else zip(likeliest.token_ids[place].tolist(), likeliest.logprobs[place].tolist(), strict=True)
        )
        entries.append({**write(token, logprob), "top_logprobs": [write(*other) for other in others]})
    return entries
