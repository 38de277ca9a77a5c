"""Credit for agents that are trained step by step: one number per turn, or one per run spread over its turns.

A step is a turn, not a row, so nothing here depends on how runs were cut into experiences or in which order they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from turnwise.config.kinds import AdvantageEstimator
from turnwise.credit.group import EPSILON, estimate_grpo, group_mean_std
from turnwise.credit.layout import (
    FlatTokens,
    Floats,
    Ints,
    TurnLayout,
    flatten_experiences,
    layout_from_keys,
    make_samples,
    number_densely,
    scan_back,
)
from turnwise.credit.reference import (
    TokenTrajectory,
    by_group,
    center,
    discount,
    mean,
    spread,
    standardize,
)
from turnwise.types import Annotations, Experience, Sample

StdLevel = Literal["group", "batch"]


def estimate_multi_step_grpo(final_rewards: Floats, groups: Ints, num_steps: Ints, params: MultiStepGrpo) -> Floats:
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


class MultiStepGrpo(AdvantageEstimator, name="multi_step_grpo"):
    """Reward of a trajectory's last step relative to its group, for all its steps."""

    needs_groups = True

    step_norm: bool = False
    """Divide a run's advantage by its number of steps, so that long runs do not weigh more."""
    std_level: StdLevel = "group"
    """Whether the spread is that of the siblings or of the whole batch; the mean is always the siblings'."""
    std_threshold: float | None = Field(default=None, ge=0)
    """Groups whose rewards spread no more than this, and single runs, teach nothing; null: all do."""

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        flat = flatten_experiences(experiences, annotations)
        starts = flat.layout.trajectory_starts
        # Only the last step's reward counts, but every token of the run has its price.
        scores = flat.bare_rewards[starts[1:] - 1]
        scores = scores + flat.layout.sum_turns(flat.layout.sum_tokens(flat.token_penalties))
        advantages = estimate_multi_step_grpo(scores, flat.group_of_trajectory, np.diff(starts), self)
        per_token = flat.layout.trajectories_to_tokens(advantages)
        return make_samples(flat, per_token, per_token, annotations)

    def needs_batch(self) -> bool:
        return self.std_level == "batch"

    def reference(self, trajectories: Sequence[TokenTrajectory]) -> list[list[float]]:
        unit = None
        if self.needs_batch():
            scores = [self._score(trajectory) for trajectory in trajectories]
            unit = (spread(scores) if len(scores) > 1 else 1.0) + EPSILON
        return by_group(trajectories, lambda group: self._reference(group, unit))

    def _reference(self, group: Sequence[TokenTrajectory], unit: float | None) -> list[list[float]]:
        scores = [self._score(trajectory) for trajectory in group]
        numbers = standardize(scores) if unit is None else [score / unit for score in center(scores)]
        if self.step_norm:
            numbers = [number / len(t.rewards) for number, t in zip(numbers, group, strict=True)]
        if self.std_threshold is not None and (len(group) == 1 or spread(scores) <= self.std_threshold):
            numbers = [0.0] * len(group)
        return [[number] * len(t.turns) for number, t in zip(numbers, group, strict=True)]

    @staticmethod
    def _score(trajectory: TokenTrajectory) -> float:
        """The reward of the last step, with all penalties."""
        return trajectory.rewards[-1] + sum(trajectory.penalties)


def estimate_step_return(flat: FlatTokens, params: StepReturn) -> Floats:
    """[turns] the rewards from each step on, against the mean over all steps of the group."""
    turn_starts = flat.layout.trajectory_starts
    trajectory_of_turn = np.repeat(np.arange(len(turn_starts) - 1), np.diff(turn_starts))
    # A step that made several calls is one step: they share its reward and its return.
    steps = layout_from_keys(trajectory_of_turn, flat.turn_steps)
    rewards = steps.sum_tokens(flat.turn_rewards)
    returns = scan_back(rewards, steps.trajectory_starts, params.gamma)
    group_of_step = np.repeat(flat.group_of_trajectory, np.diff(steps.trajectory_starts))
    means, stds, sizes = group_mean_std(returns, group_of_step)
    is_alone = sizes == 1
    centred = returns - np.where(is_alone, 0.0, means)
    scaled = centred / (np.where(is_alone, 1.0, stds) + EPSILON) if params.scale_by_std else centred
    return steps.turns_to_tokens(scaled)


class StepReturn(AdvantageEstimator, name="step_return"):
    """Rewards to come from each step on, relative to all steps of the group."""

    needs_groups = True

    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount from step to step."""
    scale_by_std: bool = True
    """Divide by the spread of the group's returns."""

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        flat = flatten_experiences(experiences, annotations)
        per_turn = estimate_step_return(flat, self)
        per_token = flat.layout.turns_to_tokens(per_turn)
        return make_samples(flat, per_token, per_token, annotations)

    def reference(self, trajectories: Sequence[TokenTrajectory]) -> list[list[float]]:
        """Calls of one step are one step: they share its reward and what is to come."""
        to_come: list[list[float]] = []
        step_of_turn: list[list[int]] = []
        for trajectory in trajectories:
            paid: list[float] = []
            places: list[int] = []
            for turn, reward in enumerate(trajectory.turn_rewards()):
                if turn == 0 or trajectory.steps[turn] != trajectory.steps[turn - 1]:
                    paid.append(0.0)
                paid[-1] += reward
                places.append(len(paid) - 1)
            to_come.append(discount(paid, self.gamma))
            step_of_turn.append(places)
        every = [number for returns in to_come for number in returns]
        middle, std = (mean(every), spread(every)) if len(every) > 1 else (0.0, 1.0)
        unit = std + EPSILON if self.scale_by_std else 1.0
        return [
            trajectory.turns_to_tokens([(returns[place] - middle) / unit for place in places])
            for trajectory, returns, places in zip(trajectories, to_come, step_of_turn, strict=True)
        ]


def estimate_gigpo(
    layout: TurnLayout, turn_rewards: Floats, turn_states: NDArray[np.uint64], groups: Ints, params: Gigpo
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


class Gigpo(AdvantageEstimator, name="gigpo"):
    """Advantage of the trajectory in its group, plus that of each turn among turns of the same state."""

    needs_groups = True

    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount from turn to turn, for the rewards that turns of one state are compared by."""
    step_weight: float = Field(default=1.0, ge=0)
    """How much a turn's advantage over its state counts beside the play's advantage over its siblings."""
    scale_by_std: bool = False
    """Divide both advantages by the spread of what they are compared with."""

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        flat = flatten_experiences(experiences, annotations)
        per_turn = estimate_gigpo(flat.layout, flat.turn_rewards, flat.turn_states, flat.group_of_trajectory, self)
        per_token = flat.layout.turns_to_tokens(per_turn)
        return make_samples(flat, per_token, per_token, annotations)

    def reference(self, trajectories: Sequence[TokenTrajectory]) -> list[list[float]]:
        scores = [trajectory.total for trajectory in trajectories]
        of_trajectory = standardize(scores) if self.scale_by_std else center(scores)
        to_come = [discount(trajectory.turn_rewards(), self.gamma) for trajectory in trajectories]
        met: dict[int, list[float]] = {}
        for trajectory, returns in zip(trajectories, to_come, strict=True):
            for state, number in zip(trajectory.states, returns, strict=True):
                met.setdefault(state, []).append(number)

        def compare(state: int, number: float) -> float:
            centered = number - mean(met[state])
            return centered / (spread(met[state]) + EPSILON) if self.scale_by_std else centered

        return [
            t.turns_to_tokens(
                [score + self.step_weight * compare(*turn) for turn in zip(t.states, returns, strict=True)]
            )
            for t, score, returns in zip(trajectories, of_trajectory, to_come, strict=True)
        ]
