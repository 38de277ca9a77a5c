"""The calls of an episode, and what is known of its steps, become a Trajectory.

No token is touched here: segments are cut from what the recorder wrote, and facts are matched to calls by their step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnwise.context.recorder import Response, cut_segments
from turnwise.rollout_io import TurnFacts
from turnwise.types import Task, Trajectory, TrajectoryId, Turn

_NOTHING = TurnFacts()


def make_trajectory(
    id: TrajectoryId,
    task: Task,
    calls: Sequence[Response],
    facts: Mapping[int, TurnFacts],
    *,
    is_cut_at_calls: bool,
    **outcome: Any,
) -> Trajectory:
    """Calls and what is known of their steps as a trajectory; `outcome` says how it ended."""
    segments, segment_of_call = cut_segments(calls, at_calls=is_cut_at_calls)
    turns = tuple(
        Turn(
            index=number,
            segment_index=segment_index,
            observation=_observation(number, calls, facts),
            response_text=call.response_text,
            actions=known.actions,
            reward=known.reward,
            penalty=known.penalty,
            policy_version=call.completion.policy_version,
            step=call.step,
            is_valid=known.is_valid,
            is_effective=known.is_effective,
            metrics=known.metrics,
            info=known.info,
            origin=call.completion.origin,
        )
        for number, (call, known, segment_index) in enumerate(
            zip(calls, _facts_of_calls(facts, calls), segment_of_call, strict=True)
        )
    )
    return Trajectory(id=id, task=task, segments=segments, turns=turns, **outcome)


def _facts_of_calls(facts: Mapping[int, TurnFacts], calls: Sequence[Response]) -> list[TurnFacts]:
    """The facts of a step stand on its last call; those of a step without one, on the last call before it."""
    last_of_step = {call.step: number for number, call in enumerate(calls)}
    found = [_NOTHING] * len(calls)
    for step, known in facts.items() if calls else ():
        number = last_of_step.get(step)
        if number is None:
            number = max((n for n, call in enumerate(calls) if call.step < step), default=0)
        if (before := found[number]) is not _NOTHING:
            known = replace(known, reward=before.reward + known.reward, penalty=before.penalty + known.penalty)
        found[number] = known
    return found


def _observation(number: int, calls: Sequence[Response], facts: Mapping[int, TurnFacts]) -> str:
    """What the world said before the first call of a step, without what was written around it; then what was said."""
    call = calls[number]
    is_first = number == 0 or calls[number - 1].step != call.step
    state = facts[call.step].state if is_first and call.step in facts else None
    return call.observation if state is None else state
