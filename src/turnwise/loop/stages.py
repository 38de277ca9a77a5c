"""One step of training as methods, in their order, for trainers that do one of them otherwise.

Each takes what the one before returned: tasks become groups, groups get their rewards, experiences become rows, rows
get credit, samples are packed, and a batch becomes an update. The loops call them on whatever object they are given; it
holds no state of a run, because rollouts may overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from turnwise.credit.group import normalise_rewards
from turnwise.experience.build import merge_prefixes
from turnwise.learn.pack import pack
from turnwise.loop.evaluate import Evaluation, evaluate_policy
from turnwise.loop.parts import ExploreParts, LearnParts, PlayParts
from turnwise.types import (
    Annotations,
    Batch,
    Experience,
    Group,
    Sample,
    StepReport,
    Task,
    Trajectory,
    TrajectoryId,
)


class Stages:
    """The stages of one step; what a subclass does not write stays as it is here."""

    async def rollout(
        self,
        parts: ExploreParts,
        tasks: Sequence[Task],
        step: int,
        *,
        on_done: Callable[[Trajectory], None] | None = None,
        known: Mapping[TrajectoryId, Trajectory] = MappingProxyType({}),
    ) -> list[Group]:
        """Play every task with all its siblings; `on_done` hears of each episode, and what is `known` is not played."""
        groups = await parts.proxy.collect(tasks, rollout=step, on_done=on_done, known=known)
        if parts.greedy_proxy is None:
            return groups
        greedy = await parts.greedy_proxy.collect(tasks, rollout=step)
        return [replace(group, greedy=once.trajectories[0]) for group, once in zip(groups, greedy, strict=True)]

    def reward_model_step(self, groups: list[Group]) -> list[Group]:
        """What was played, with the rewards that count; those of the environment or of `reward.judge` are there."""
        return groups

    def shape_rewards(self, parts: LearnParts, experiences: Sequence[Experience]) -> list[Experience]:
        """Experiences that extend each other become one row, and `reward.normalisation` scales what they earned."""
        scale = parts.settings.reward.normalisation
        return normalise_rewards(merge_prefixes(experiences), grouping=scale.grouping, method=scale.method)

    def compute_advantages(
        self, parts: LearnParts, experiences: Sequence[Experience], annotations: Annotations
    ) -> list[Sample]:
        """Credit for every sampled token: `credit.type`. Values and reference log-probs are in `annotations`."""
        return parts.credit(experiences, annotations)

    def pack(self, samples: Sequence[Sample]) -> Batch:
        """The arrays of one update."""
        return pack(samples)

    def rl_step(self, parts: LearnParts, batch: Batch) -> StepReport:
        """One update of the policy and, where there is one, of the critic."""
        return parts.learner.step(batch)

    async def evaluate(self, parts: PlayParts, advance: Callable[[int, int], None] | None = None) -> Evaluation:
        """How good the policy is on the held-out tasks."""
        return await evaluate_policy(parts, advance)


STAGES = Stages()
"""Those of a plain run."""


def is_written_anew(stages: Stages, *names: str) -> bool:
    """Whether a trainer does one of these stages in a way of its own."""
    return any(getattr(type(stages), name) is not getattr(Stages, name) for name in names)
