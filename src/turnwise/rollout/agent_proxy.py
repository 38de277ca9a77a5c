"""Runs many episodes at once over one engine, without a turn barrier: whoever is ahead goes on.

In: tasks. Out: Groups of Trajectories. Consumes: the plays of one front, a workflow per sibling. Waits for: the last of
them. The engine puts whatever requests are there into one batch; a judge, where there is one, scores all episodes
together in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from turnwise.rollout.judges import Judging
from turnwise.rollout.runner import Front, RunnerLimits, run_plays
from turnwise.types import Group, Task, Trajectory, TrajectoryId


class AgentProxy:
    """The one scheduler: every front (environments, agents, user workflows) runs through it."""

    def __init__(self, front: Front, *, limits: RunnerLimits | None = None, judging: Judging | None = None) -> None:
        self.front = front
        self._limits = limits or RunnerLimits()
        self._judging = judging

    async def collect(
        self,
        tasks: Sequence[Task],
        *,
        rollout: int,
        round_number: int = 0,
        on_done: Callable[[Trajectory], None] | None = None,
        known: Mapping[TrajectoryId, Trajectory] = MappingProxyType({}),
    ) -> list[Group]:
        """Play `group_size` siblings of every task; `rollout` numbers the trajectories and chooses the dice.

        Further rounds of one rollout, with other tasks, throw dice of their own. `on_done` hears of each episode as it
        ends, before any judge does. What is `known` from an attempt that was cut short is taken as it is.
        """
        size = self.front.group_size
        ids = [TrajectoryId(rollout, task.id, sibling) for task in tasks for sibling in range(size)]
        plays = self.front.begin(tasks, rollout=rollout, round_number=round_number)
        missing = [number for number, name in enumerate(ids) if name not in known]
        ended = dict(
            zip(missing, await run_plays([plays[number] for number in missing], self._limits, on_done), strict=True)
        )
        played = [ended[number] if number in ended else known[name] for number, name in enumerate(ids)]
        if self._judging is not None:
            played = self._judging.apply(played)
        return [
            Group(task=task, trajectories=tuple(played[number * size : (number + 1) * size]))
            for number, task in enumerate(tasks)
        ]
