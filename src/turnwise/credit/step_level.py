"""Credit for agents that are trained step by step: one number per turn, or one per run spread over its turns.

A step is a turn, not a row, so nothing here depends on how runs were cut into experiences or in which order they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from turnwise.config.settings import Settings
from turnwise.credit.group import EPSILON, estimate_grpo, group_mean_std
from turnwise.credit.layout import (
    Floats,
    Ints,
    PlayedTokens,
    TurnLayout,
    layout_from_keys,
    make_samples,
    number_densely,
    play_back,
    scan_back,
)
from turnwise.types import Annotations, Experience, Sample

StdLevel = Literal["group", "batch"]


def estimate_multi_step_grpo(
    final_rewards: Floats, groups: Ints, num_steps: Ints, params: MultiStepGrpoParams
) -> Floats:
    """One advantage per run from the reward of its last step; runs of a group without spread may count as nothing."""
    means, group_stds, sizes = group_mean_std(final_rewards, groups)
    is_alone = sizes == 1
    if params.std_level == "batch":
        stds = np.full_like(final_rewards, final_rewards.std(ddof=1) if len(final_rewards) > 1 else 1.0)
    else:
        stds = np.where(is_alone, 1.0, group_stds)
    advantages = (final_rewards - np.where(is_alone, 0.0, means)) / (stds + EPSILON)
    if params.step_norm:
        advantages = advantages / num_steps
    if params.std_threshold is not None:
        is_dead: NDArray[np.bool_] = is_alone | (group_stds <= params.std_threshold)
        advantages = np.where(is_dead, 0.0, advantages)
    return advantages


class MultiStepGrpoParams(Settings):
    step_norm: bool = False
    """Divide a run's advantage by its number of steps, so that long runs do not weigh more."""
    std_level: StdLevel = "group"
    """Whether the spread is that of the siblings or of the whole batch; the mean is always the siblings'."""
    std_threshold: float | None = Field(default=None, ge=0)
    """Groups whose rewards spread no more than this, and single runs, teach nothing; null: all do."""


class MultiStepGrpo:
    """`credit: {type: multi_step_grpo}`: the reward of a run's last step against its siblings', for all its steps."""

    Params = MultiStepGrpoParams
    needs_values = False
    needs_groups = True
    needs_greedy = False

    def __init__(self, params: MultiStepGrpoParams) -> None:
        self.params = params

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        played = play_back(experiences, annotations)
        starts = played.layout.trajectory_starts
        # Only the last step's reward counts, but every token of the run has its price.
        scores = played.bare_rewards[starts[1:] - 1]
        scores = scores + played.layout.sum_turns(played.layout.sum_tokens(played.token_penalties))
        advantages = estimate_multi_step_grpo(scores, played.group_of_trajectory, np.diff(starts), self.params)
        per_token = played.layout.trajectories_to_tokens(advantages)
        return make_samples(played, per_token, per_token, annotations)


class StepReturnParams(Settings):
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount from step to step."""
    scale_by_std: bool = True
    """Divide by the spread of the group's returns."""


def estimate_step_return(played: PlayedTokens, params: StepReturnParams) -> Floats:
    """[turns] the rewards from each step on, against the mean over all steps of the group."""
    turn_starts = played.layout.trajectory_starts
    trajectory_of_turn = np.repeat(np.arange(len(turn_starts) - 1), np.diff(turn_starts))
    # A step that made several calls is one step: they share its reward and its return.
    steps = layout_from_keys(trajectory_of_turn, played.turn_steps)
    rewards = steps.sum_tokens(played.turn_rewards)
    returns = scan_back(rewards, steps.trajectory_starts, params.gamma)
    group_of_step = np.repeat(played.group_of_trajectory, np.diff(steps.trajectory_starts))
    means, stds, sizes = group_mean_std(returns, group_of_step)
    is_alone = sizes == 1
    centred = returns - np.where(is_alone, 0.0, means)
    scaled = centred / (np.where(is_alone, 1.0, stds) + EPSILON) if params.scale_by_std else centred
    return steps.turns_to_tokens(scaled)


class StepReturn:
    """`credit: {type: step_return}`: per-step rewards count, each for the steps up to it."""

    Params = StepReturnParams
    needs_values = False
    needs_groups = True
    needs_greedy = False

    def __init__(self, params: StepReturnParams) -> None:
        self.params = params

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        played = play_back(experiences, annotations)
        per_turn = estimate_step_return(played, self.params)
        per_token = played.layout.turns_to_tokens(per_turn)
        return make_samples(played, per_token, per_token, annotations)


class GigpoParams(Settings):
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount from turn to turn, for the rewards that turns of one state are compared by."""
    step_weight: float = Field(default=1.0, ge=0)
    """How much a turn's advantage over its state counts beside the play's advantage over its siblings."""
    scale_by_std: bool = False
    """Divide both advantages by the spread of what they are compared with."""


def estimate_gigpo(
    layout: TurnLayout, turn_rewards: Floats, turn_states: NDArray[np.uint64], groups: Ints, params: GigpoParams
) -> Floats:
    """[turns] the advantage of the play, plus that of the turn among all turns of its group and state."""
    num_turns = np.diff(layout.trajectory_starts)
    plays = estimate_grpo(layout.sum_turns(turn_rewards), groups, scale_by_std=params.scale_by_std)
    returns = scan_back(turn_rewards, layout.trajectory_starts, params.gamma)
    places = number_densely(zip(np.repeat(groups, num_turns).tolist(), turn_states.tolist(), strict=True))
    return np.repeat(plays, num_turns) + params.step_weight * _compare(returns, places, params.scale_by_std)


def _compare(returns: Floats, places: Ints, scale_by_std: bool) -> Floats:
    """Against the mean of the same place. Met once, a place says nothing; its mean makes that 0 by itself."""
    means, stds, _ = group_mean_std(returns, places)
    centred = returns - means
    return centred / (stds + EPSILON) if scale_by_std else centred


class Gigpo:
    """`credit: {type: gigpo}`"""

    Params = GigpoParams
    needs_values = False
    needs_groups = True
    needs_greedy = False

    def __init__(self, params: GigpoParams) -> None:
        self.params = params

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        played = play_back(experiences, annotations)
        per_turn = estimate_gigpo(
            played.layout, played.turn_rewards, played.turn_states, played.group_of_trajectory, self.params
        )
        per_token = played.layout.turns_to_tokens(per_turn)
        return make_samples(played, per_token, per_token, annotations)
