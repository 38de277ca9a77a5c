"""Step-wise experiences that extend each other become one training row: the same gradient for linear cost.

In: experiences, of which some hold one model call each. Out: as many rows as there are unbroken token sequences. A call
that begins with all tokens of an earlier one needs no row of its own; calls that branch off, or see a window of what
was said, keep theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from turnwise.provenance import join_provenance
from turnwise.types import Experience, Segment, TrajectoryId


def merge_prefixes(experiences: Sequence[Experience]) -> list[Experience]:
    """Rows in the given order, each at the place of its first part; where nothing extends, nothing changes.

    Conversations of one episode may alternate: a call is joined to the one that it goes on from, wherever that is. Of
    calls that go on from the same one the first is joined, so that there are as many rows as conversations end.
    """
    chains: list[list[int]] = []
    by_trajectory: dict[TrajectoryId, _Chains] = {}
    for number in sorted(range(len(experiences)), key=lambda i: experiences[i].id):
        experience = experiences[number]
        known = by_trajectory.setdefault(experience.id.trajectory, _Chains())
        chain = known.take(experience.segment)
        if chain is None:
            chain = []
            chains.append(chain)
        chain.append(number)
        known.put(experience.segment, chain)
    chains.sort(key=lambda chain: chain[0])
    return [_join([experiences[i] for i in chain]) for chain in chains]


class _Chains:
    """The rows of one trajectory, found by all their tokens."""

    def __init__(self) -> None:
        self._by_tokens: dict[bytes, list[int]] = {}
        self._num_by_length: Counter[int] = Counter()

    def take(self, later: Segment) -> list[int] | None:
        """The longest row behind whose tokens `later` was sampled, which is no end any more."""
        unsampled = int(later.loss_mask.argmax()) if later.loss_mask.any() else len(later)
        for length in sorted((n for n, num in self._num_by_length.items() if num and n <= unsampled), reverse=True):
            chain = self._by_tokens.pop(later.token_ids[:length].tobytes(), None)
            if chain is not None:
                self._num_by_length[length] -= 1
                return chain
        return None

    def put(self, segment: Segment, chain: list[int]) -> None:
        tokens = segment.token_ids.tobytes()
        if tokens not in self._by_tokens:
            self._num_by_length[len(segment)] += 1
        self._by_tokens[tokens] = chain


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
