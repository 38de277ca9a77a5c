"""Runs many episodes at once over one engine, without a turn barrier: whoever is ahead goes on.

In: tasks. Out: Groups of Trajectories. Consumes: one workflow per sibling. Waits for: the last of them. The engine puts
whatever requests are there into one batch; a judge, where there is one, scores all episodes together in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from turnwise.context.manager import ContextManager
from turnwise.exchange import EnvOutput
from turnwise.protocols import Engine, Workflow
from turnwise.rollout.env_manager import EnvStateManager, derive_seed
from turnwise.rollout.judges import Judging
from turnwise.rollout.workflow import WorkflowParts
from turnwise.types import Group, Sampling, Task, Trajectory

WorkflowFactory: TypeAlias = Callable[[WorkflowParts, EnvOutput], Workflow]


class AgentProxy:
    """The one scheduler: every front (environments, agents, user workflows) runs through it."""

    def __init__(
        self,
        states: EnvStateManager,
        context: ContextManager,
        engine: Engine,
        workflow: WorkflowFactory,
        *,
        sampling: Sampling,
        seed: int,
        judging: Judging | None = None,
    ) -> None:
        self.states = states
        self._context = context
        self._engine = engine
        self._workflow = workflow
        self._sampling = sampling
        self._seed = seed
        self._judging = judging

    async def collect(
        self,
        tasks: Sequence[Task],
        *,
        rollout: int,
        round_number: int = 0,
        on_done: Callable[[Trajectory], None] | None = None,
    ) -> list[Group]:
        """Play `group_size` siblings of every task; `rollout` numbers the trajectories and chooses the dice.

        Further rounds of one rollout, with other tasks, throw dice of their own. `on_done` hears of each episode as it
        ends, before any judge does.
        """
        parts = WorkflowParts(
            states=self.states,
            context=self._context,
            engine=self._engine,
            sampling=self._sampling,
            seed=derive_seed(self._seed, "round", round_number) if round_number else self._seed,
            rollout=rollout,
        )

        async def play(first: EnvOutput) -> tuple[int, Trajectory]:
            trajectory = await self._workflow(parts, first).run()
            if on_done is not None:
                on_done(trajectory)
            return first.env_id, trajectory

        running = self.states.begin(tasks, rollout=rollout)
        plays = [asyncio.ensure_future(play(first)) for first in running]
        try:
            played = dict(await asyncio.gather(*plays))
        finally:
            # Where one workflow breaks, its siblings must not go on behind the caller's back.
            for unfinished in plays:
                unfinished.cancel()
        return self._gather_groups(tasks, played)

    def _gather_groups(self, tasks: Sequence[Task], played: dict[int, Trajectory]) -> list[Group]:
        # An environment that failed in reset has no workflow; its trajectory is empty and says why.
        for state in self.states.get_rollout_states():
            if state.env_id not in played:
                (played[state.env_id],) = self._context.formulate_rollouts([state])
        if self._judging is not None:
            played = dict(zip(played, self._judging.apply(list(played.values())), strict=True))
        size = self.states.group_size
        return [
            Group(task=task, trajectories=tuple(played[number * size + sibling] for sibling in range(size)))
            for number, task in enumerate(tasks)
        ]
