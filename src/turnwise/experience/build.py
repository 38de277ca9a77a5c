"""Trajectories become training records: one Experience per segment.

No mask is made here and no token is touched; turns are matched to segments by the indices recorded while playing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnwise.errors import LearnError
from turnwise.infra.seeds import fingerprint
from turnwise.provenance import Provenance
from turnwise.types import NO_POLICY, Experience, ExperienceId, Group, Trajectory, Turn


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
                turn_states=np.array([fingerprint(turn.observation) for turn in turns], dtype=np.uint64),
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
    """None where an engine, or whoever made the turns, does not say where they come from."""
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
