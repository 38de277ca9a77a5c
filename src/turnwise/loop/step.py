"""One step of training as methods, in their order, for trainers that do one of them otherwise.

Each takes what the one before returned: tasks become groups, groups get their rewards, experiences become rows, rows
get credit, samples are packed, and a batch becomes an update. The loops call them on whatever object they are given; it
holds no state of a run, because rollouts may overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from turnwise.config.schema_learn import NoFilter
from turnwise.credit.group import normalise_rewards
from turnwise.errors import LearnError
from turnwise.experience.build import merge_prefixes
from turnwise.infra.digests import seal_groups
from turnwise.infra.threads import count_left_behind
from turnwise.learn.pack import pack
from turnwise.loop.components import ExploreParts, LearnParts, PlayParts
from turnwise.loop.evaluate import Evaluation, evaluate_policy
from turnwise.rollout.scoring import filter_groups
from turnwise.types import (
    Annotations,
    Batch,
    Experience,
    Group,
    Metrics,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """All that was played, and what of it is learnt from."""

    played: list[Group]
    kept: list[Group]
    num_left_behind: int = 0
    """Calls of environments and programs that still run though their episodes are over."""

    @property
    def tokens_sampled(self) -> int:
        plays = [t for group in self.played for t in (*group.trajectories, group.greedy) if t is not None]
        return sum(segment.num_action_tokens for t in plays for segment in t.segments)

    @property
    def metrics(self) -> Metrics:
        return {
            "rollout/groups_played": float(len(self.played)),
            "rollout/groups_kept": float(len(self.kept)),
            "rollout/left_behind": float(self.num_left_behind),
        }


async def explore(
    parts: ExploreParts,
    step: int,
    *,
    on_done: Callable[[Trajectory], None] | None = None,
    known: Mapping[TrajectoryId, Trajectory] = MappingProxyType({}),
    stages: Stages = STAGES,
) -> Explored:
    """Play `rollout.groups` tasks; with a filter, again until as many groups have passed or its rounds are used up.

    `on_done` hears of each episode as it ends. Episodes that are known already are not played again. `stages` say how
    tasks are played and rewarded.
    """
    wanted, chosen = parts.groups_per_rollout, parts.settings.reward.filter
    played: list[Group] = []
    kept: list[Group] = []
    for _ in range(_max_rounds(parts)):
        tasks = parts.tasks.take(wanted, besides=[group.task for group in played])
        groups = stages.reward_model_step(await stages.rollout(parts, tasks, step, on_done=on_done, known=known))
        if is_written_anew(stages, "rollout", "reward_model_step"):
            groups = seal_groups(groups)
        played += groups
        kept += filter_groups(groups, chosen)
        if len(kept) >= wanted:
            break
    parts.tasks.feedback(played)
    explored = Explored(played=played, kept=kept[:wanted], num_left_behind=count_left_behind())
    parts.on_explored(step, explored)
    return explored


def max_episodes(parts: ExploreParts) -> int:
    """Episodes of one rollout, those of `mix` included; with a filter, if all its rounds are needed."""
    return _max_rounds(parts) * parts.groups_per_rollout * parts.settings.rollout.group_size


def _max_rounds(parts: ExploreParts) -> int:
    chosen = parts.settings.reward.filter
    return 1 if isinstance(chosen, NoFilter) else chosen.max_rounds


async def explore_on_record(parts: ExploreParts, step: int, *, stages: Stages = STAGES) -> Explored:
    """As `explore`, with every episode written down as it ends: a rollout that a process before this one had finished
    is read and not played again, until a checkpoint covers it.

    One that was cut short is played anew, by the same dice: the rest of it alone would be computed in other batches
    than the whole was, and differ in the last bit.
    """
    journals = parts.journals
    if journals is None:
        return await explore(parts, step, stages=stages)
    journals.forget_covered()
    known = journals.read_whole(step)
    explored = await explore(parts, step, on_done=journals.append, known=known, stages=stages)
    if not known:
        journals.finish(step)
    return explored


_MAX_STARVED = 5
"""Steps in a row without anything to learn from."""


def refuse_to_starve(explored: Explored, step: int, num_starved: int) -> None:
    """Nothing to learn from is an error: at once where episodes failed, after a while where a filter dropped them."""
    if not num_starved:
        return
    if explored.kept or all(t.stop_reason.is_error for group in explored.played for t in group.trajectories):
        raise LearnError(f"no episode of step {step} can be learnt from. {first_failure(explored.played)}")
    if num_starved >= _MAX_STARVED:
        raise LearnError(
            f"no group has passed reward.filter in {num_starved} steps in a row, up to step {step}. Its siblings earn "
            "the same. Loosen the filter, make tasks easier or harder, or raise rollout.group_size or temperature."
        )


def first_failure(groups: Sequence[Group]) -> str:
    """Why the first episode that failed did so."""
    failed = (t for group in groups for t in group.trajectories if t.failure)
    return next((f"{t.id} ended with {t.stop_reason}: {t.failure}" for t in failed), "None of them failed.")
