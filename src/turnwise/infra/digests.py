"""Digests are put on what arises: on replies by engines, on turns when their rewards are final.

In: what an engine has sampled, or a trajectory as a workflow, a judge or a trainer's own stage left it. Out: the same,
sealed. What is changed after that is detected before it is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from turnwise.infra.seeds import hash64
from turnwise.provenance import Origin, digest_name, digest_turn
from turnwise.types import (
    Alternatives,
    Completion,
    FinishReason,
    FloatArray,
    GenerateRequest,
    Group,
    IntArray,
    Trajectory,
)


def complete(
    engine: str,
    request: GenerateRequest,
    token_ids: IntArray,
    logprobs: FloatArray,
    reason: FinishReason,
    *,
    policy_version: int,
    alternatives: Alternatives | None = None,
) -> Completion:
    """What an engine of this name has just sampled for a request."""
    origin = Origin.of(
        engine,
        request=request.seed,
        temperature=request.sampling.temperature,
        prompt_ids=request.prompt_ids,
        token_ids=token_ids,
        logprobs=logprobs,
        policy_version=policy_version,
    )
    return Completion(
        token_ids=token_ids,
        behavior_logprobs=logprobs,
        finish_reason=reason,
        policy_version=policy_version,
        origin=origin,
        alternatives=alternatives,
    )


def seal_turns(trajectory: Trajectory) -> Trajectory:
    """Call it once the rewards are final."""
    name, turns = digest_name(trajectory.id), trajectory.turns
    is_truncated, num_turns = trajectory.stop_reason.is_truncated, len(turns)
    sealed = tuple(
        replace(
            turn,
            seal=digest_turn(
                name,
                (turn.index, num_turns, turn.step, turn.policy_version, hash64(turn.observation)),
                turn.reward,
                turn.learnt_reward,
                is_truncated,
            ),
        )
        for turn in turns
    )
    return replace(trajectory, turns=sealed)


def seal_groups(groups: Sequence[Group]) -> list[Group]:
    """All trajectories that may be trained."""
    return [replace(group, trajectories=tuple(map(seal_turns, group.trajectories))) for group in groups]
