"""Trajectories become training records: one Experience per segment.

No mask is made here and no token is touched; turns are matched to segments by the indices recorded while playing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from turnwise.errors import LearnError
from turnwise.infra.seeds import hash64
from turnwise.provenance import Provenance, join_provenance
from turnwise.types import NO_POLICY, Experience, ExperienceId, Group, Segment, Trajectory, TrajectoryId, Turn


def build_experiences(groups: Sequence[Group]) -> list[Experience]:
    """All experiences of all groups, failed trajectories left out: what they hold was cut off by a fault."""
    for trajectory in (t for group in groups for t in group.trajectories):
        if any(turn.policy_version == NO_POLICY for turn in trajectory.turns):
            raise LearnError(
                f"{trajectory.id} was not sampled by a policy of ours, so its tokens have no log-probs to learn from. "
                "Such episodes can be imitated: warm_start.type=endpoint."
            )
    return [
        experience
        for group in groups
        for trajectory in group.trajectories
        if not trajectory.stop_reason.is_error
        for experience in split_trajectory(trajectory, greedy_return=_shaped_return(group.greedy))
    ]


def split_trajectory(trajectory: Trajectory, *, greedy_return: float | None = None) -> list[Experience]:
    """One experience per segment, with the rewards of the turns sampled in it."""
    experiences = []
    for index, segment in enumerate(trajectory.segments):
        turns = [turn for turn in trajectory.turns if turn.segment_index == index]
        experiences.append(
            Experience(
                id=ExperienceId(trajectory.id, index),
                segment=segment,
                turn_indices=np.array([turn.index for turn in turns], dtype=np.int32),
                raw_rewards=np.array([turn.reward for turn in turns], dtype=np.float32),
                turn_rewards=np.array([turn.learnt_reward for turn in turns], dtype=np.float32),
                turn_states=np.array([hash64(turn.observation) for turn in turns], dtype=np.uint64),
                turn_steps=np.array([turn.index if turn.step is None else turn.step for turn in turns], dtype=np.int32),
                policy_version=min(turn.policy_version for turn in turns),
                is_last=index == len(trajectory.segments) - 1,
                is_truncated=trajectory.stop_reason.is_truncated,
                greedy_return=greedy_return,
                provenance=_provenance(turns),
            )
        )
    return experiences


def _provenance(turns: Sequence[Turn]) -> Provenance | None:
    """None if the engine, or the code that created the turns, does not report where they come from."""
    origins = [turn.origin for turn in turns if turn.origin is not None]
    seals = [turn.seal for turn in turns if turn.seal is not None]
    if not len(origins) == len(seals) == len(turns):
        return None
    return Provenance(
        engines=tuple(origin.engine for origin in origins),
        requests=np.array([origin.request for origin in origins], dtype=np.uint64),
        policy_versions=np.array([turn.policy_version for turn in turns], dtype=np.int64),
        temperatures=np.array([origin.temperature for origin in origins], dtype=np.float64),
        digests=np.array([origin.digest for origin in origins], dtype=np.uint32),
        seals=np.array(seals, dtype=np.uint32),
        is_as_asked=np.array([origin.is_as_asked for origin in origins], dtype=np.bool_),
    )


def _shaped_return(trajectory: Trajectory | None) -> float | None:
    """What a play earned, shaping and penalties included; None where there is none to go by."""
    if trajectory is None or trajectory.stop_reason.is_error:
        return None
    return float(sum(turn.learnt_reward for turn in trajectory.turns))


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
