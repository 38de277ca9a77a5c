"""The rows of a batch belong together as they should: siblings, turns, versions, and numbers that are numbers.

In: experiences as they come from the buffer. Out: breaches. It needs nothing but the experiences, so it also holds for
those that nobody has sealed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnwise.audit.breach import Breach, of_experience
from turnwise.types import Experience, ExperienceId, TrajectoryId

_MAX_LOGPROB = 1e-3
"""A probability is at most 1; sums in half precision may end a little above."""


def check_finite(experiences: Sequence[Experience]) -> list[Breach]:
    """Every reward and every log-prob is a number in float32, and no log-prob is above 0."""
    logprobs = np.concatenate([e.segment.behavior_logprobs for e in experiences])
    rewards = np.concatenate([array for e in experiences for array in (e.raw_rewards, e.turn_rewards)])
    if np.isfinite(rewards).all() and np.isfinite(logprobs).all() and logprobs.max(initial=0) <= _MAX_LOGPROB:
        return []
    breaches = []
    for experience in experiences:
        for name, array in (("raw reward", experience.raw_rewards), ("learnt reward", experience.turn_rewards)):
            for turn in np.flatnonzero(~np.isfinite(array)).tolist():
                found = f"a {name} of {array[turn]} in float32"
                breaches.append(of_experience("finite", experience, "a finite reward", found, turn))
        given = experience.segment.behavior_logprobs
        for token in np.flatnonzero(~(np.isfinite(given) & (given <= _MAX_LOGPROB))).tolist():
            breaches.append(_bad_logprob(experience, token))
    return breaches


def _bad_logprob(experience: Experience, token: int) -> Breach:
    index = int(experience.segment.turn_ids[token])
    found = f"{experience.segment.behavior_logprobs[token]} on token id {experience.segment.token_ids[token]}"
    if index < 0:
        return of_experience("finite", experience, "a log-prob of 0 where nothing was sampled", found)
    turn = int(np.searchsorted(experience.turn_indices, index))
    return of_experience("finite", experience, "a finite log-prob of at most 0", found, turn)


def check_members(experiences: Sequence[Experience], *, group_size: int) -> list[Breach]:
    """Each record once, groups in one piece and in order, trajectories from their first turn to their last."""
    breaches: list[Breach] = []
    seen: set[ExperienceId] = set()
    finished: set[str] = set()
    of_trajectory: dict[TrajectoryId, list[Experience]] = {}
    before: Experience | None = None
    for experience in experiences:
        name = experience.id.trajectory
        if experience.id in seen:
            breaches.append(of_experience("twice", experience, "each experience once", "the same one again"))
            continue
        seen.add(experience.id)
        if before is not None and before.id.trajectory.group != name.group:
            finished.add(before.id.trajectory.group)
        if name.group in finished or (before is not None and _is_before(experience, before)):
            found = f"it behind {before.id if before else 'nothing'}"
            breaches.append(of_experience("order", experience, "siblings side by side, in order", found))
        if name.task_id.split("/")[-2:-1] == ["train"] and not 0 <= name.sibling < group_size:
            found = f"sibling {name.sibling}"
            breaches.append(of_experience("group", experience, f"one of {group_size} siblings", found))
        of_trajectory.setdefault(name, []).append(experience)
        before = experience
    return breaches + [b for rows in of_trajectory.values() if (b := _check_turns(rows)) is not None]


def _is_before(experience: Experience, other: Experience) -> bool:
    """Whether it is a sibling that belongs in front."""
    return experience.id.trajectory.group == other.id.trajectory.group and experience.id < other.id


def _check_turns(rows: Sequence[Experience]) -> Breach | None:
    """Turns without a gap from 0 on, and one last row, at the end."""
    rows = sorted(rows, key=lambda row: row.id.segment_index)
    turns = [turn for row in rows for turn in row.turn_indices.tolist()]
    if turns != list(range(len(turns))):
        return of_experience("turns", rows[0], f"turns 0 to {len(turns) - 1} in order", f"turns {turns}")
    if [row.is_last for row in rows] != [*[False] * (len(rows) - 1), True]:
        return of_experience("turns", rows[-1], "a row that ends the trajectory, at its end", "none, or another one")
    return None


def check_staleness(
    experiences: Sequence[Experience], *, policy_version: int, max_staleness: int | None
) -> list[Breach]:
    """No row is from weights that are not there yet, or older than the loop can have left them."""
    oldest = -1 if max_staleness is None else policy_version - max_staleness
    return [
        of_experience(
            "staleness",
            experience,
            f"a version from {max(oldest, 0)} to {policy_version}",
            f"version {experience.policy_version}",
        )
        for experience in experiences
        if not max(oldest, 0) <= experience.policy_version <= policy_version
    ]
