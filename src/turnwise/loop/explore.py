"""One step's rollouts: play, judge which groups are worth learning from, and play more until the batch is full."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from turnwise.config.schema_learn import NoFilter
from turnwise.infra.digests import seal_groups
from turnwise.infra.threads import count_left_behind
from turnwise.loop.parts import ExploreParts
from turnwise.loop.stages import STAGES, Stages, is_written_anew
from turnwise.rollout.scoring import filter_groups
from turnwise.types import Group, Metrics, Trajectory, TrajectoryId


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
