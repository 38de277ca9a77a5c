"""Step-wise experiences that extend each other become one training row: the same gradient for linear cost.

In: experiences, of which some hold one model call each. Out: as many rows as there are unbroken token sequences. A call
that begins with all tokens of the call before it needs no row of its own; calls that branch off, or see a window of
what was said, keep theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnwise.provenance import join_provenance
from turnwise.types import Experience, Segment


def merge_prefixes(experiences: Sequence[Experience]) -> list[Experience]:
    """Rows in the given order, each at the place of its first part; where nothing extends, nothing changes."""
    chains: list[list[int]] = []
    for number in sorted(range(len(experiences)), key=lambda i: experiences[i].id):
        # Only neighbours are joined, so that the turns of a row stay without gaps and rows in playing order.
        if chains and _extends(experiences[number], experiences[chains[-1][-1]]):
            chains[-1].append(number)
        else:
            chains.append([number])
    chains.sort(key=lambda chain: chain[0])
    return [_join([experiences[i] for i in chain]) for chain in chains]


def _extends(later: Experience, earlier: Experience) -> bool:
    """Whether `later` was sampled behind exactly the tokens of `earlier`."""
    if later.id.trajectory != earlier.id.trajectory:
        return False
    length, mask = len(earlier.segment), later.segment.loss_mask
    unsampled = int(mask.argmax()) if mask.any() else len(mask)
    return length <= unsampled and np.array_equal(later.segment.token_ids[:length], earlier.segment.token_ids)


def _join(parts: Sequence[Experience]) -> Experience:
    """One experience with the tokens of the last part and the turns of all."""
    first, last = parts[0], parts[-1]
    if first is last:
        return first
    return Experience(
        id=first.id,
        segment=_join_segments([part.segment for part in parts]),
        turn_indices=np.concatenate([part.turn_indices for part in parts]),
        raw_rewards=np.concatenate([part.raw_rewards for part in parts]),
        turn_rewards=np.concatenate([part.turn_rewards for part in parts]),
        turn_states=np.concatenate([part.turn_states for part in parts]),
        turn_steps=np.concatenate([part.turn_steps for part in parts]),
        policy_version=min(part.policy_version for part in parts),
        is_last=last.is_last,
        is_truncated=last.is_truncated,
        greedy_return=last.greedy_return,
        provenance=join_provenance([part.provenance for part in parts]),
    )


def _join_segments(segments: Sequence[Segment]) -> Segment:
    whole = segments[-1]
    behavior_logprobs, turn_ids = whole.behavior_logprobs.copy(), whole.turn_ids.copy()
    for segment in segments[:-1]:
        # Every token was sampled at most once, so no part writes over another.
        sampled = np.flatnonzero(segment.loss_mask)
        behavior_logprobs[sampled] = segment.behavior_logprobs[sampled]
        turn_ids[sampled] = segment.turn_ids[sampled]
    return Segment(
        token_ids=whole.token_ids,
        loss_mask=turn_ids >= 0,
        behavior_logprobs=behavior_logprobs,
        turn_ids=turn_ids,
    )
