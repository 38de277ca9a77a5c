"""The tokens of one episode come in, as they were learnt from or as they were played; columns for JSON go out.

Numbers are the decimals that name the recorded float32 and no other, so that what a person reads is what is on record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.errors import RunError
from turnwise.infra.array_codec import decode_text
from turnwise.report.token_log_reader import RecordedToken, StepTokens
from turnwise.view.token_texts import TokenTexts

COLUMNS = RecordedToken._fields[2:]
"""Everything about a token but its step and its trajectory, which all of them share."""


def describe_learnt(
    tokens: StepTokens, arrays: Mapping[str, NDArray[Any]], trajectory: str, texts: TokenTexts
) -> dict[str, Any] | None:
    """The tokens of a trajectory in an update, `arrays` being all of them; None where they are not on record."""
    where = tokens_of(tokens, trajectory)
    if where is None:
        return None
    return {
        "source": "learning record",
        "has_values": tokens.has_values,
        "has_reference": tokens.has_reference,
        "has_trace": tokens.trace is not None,
        "text": texts.of_all(arrays["token_id"][where].tolist()),
        "has_texts": texts.is_known,
        **{name: plain(arrays[name][where]) for name in COLUMNS},
    }


def describe_played(record: Mapping[str, Any], texts: TokenTexts) -> dict[str, Any] | None:
    """The tokens of an episode that nothing was learnt from, or not on record: ids, mask and log-probs."""
    try:
        segments = decode_text(record["segments"])
    except (RunError, KeyError, TypeError, ValueError):
        return None
    columns: dict[str, list[Any]] = {
        "segment_index": [index for index, segment in enumerate(segments) for _ in range(len(segment))],
        "position": [place for segment in segments for place in range(len(segment))],
        "turn": [turn for segment in segments for turn in segment.turn_ids.tolist()],
        "token_id": [token for segment in segments for token in segment.token_ids.tolist()],
        "is_sampled": [bit for segment in segments for bit in segment.loss_mask.tolist()],
        "behavior_logprob": [number for segment in segments for number in plain(segment.behavior_logprobs)],
    }
    return {
        "source": "episode",
        "text": texts.of_all(columns["token_id"]),
        "has_texts": texts.is_known,
        **columns,
    }


def tokens_of(tokens: StepTokens, trajectory: str) -> NDArray[np.int64] | None:
    """Where in a step the tokens of a trajectory are."""
    names = [str(known) for known in tokens.rows.trajectory_ids]
    if trajectory not in names:
        return None
    rows = tokens.batch.trajectory_of_row == names.index(trajectory)
    return np.flatnonzero(np.repeat(rows, tokens.batch.row_lengths))


def plain(values: NDArray[Any]) -> list[Any]:
    """What JSON can hold: shortest decimals of float32, and null for what is not finite."""
    if values.dtype != np.float32:
        return values.tolist()
    # Most tokens were given and not sampled: their numbers are 0, and what is 0 needs no decimals.
    numbers: list[float | None] = [0.0] * len(values)
    places = np.flatnonzero(values)
    told = zip(places.tolist(), values[places].astype(str), np.isfinite(values[places]).tolist(), strict=True)
    for place, text, is_finite in told:
        numbers[place] = float(text) if is_finite else None
    return numbers
