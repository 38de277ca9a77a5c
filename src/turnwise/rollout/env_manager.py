"""Groups of environments by tag: the worlds of one rollout, stepped in any subset and any order.

In: tasks and actions. Out: histories, and how each episode ended. Siblings of a group share the layout seed and have
dynamics of their own. A failing environment ends its own episode and nothing else. It knows nothing of tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from turnwise.envs.base import BaseEnv
from turnwise.envs.boundary import call_env, describe_env, reset_env
from turnwise.envs.tasks import SeedTasks
from turnwise.errors import ConfigError, EnvError, RewardError, TaskError
from turnwise.exchange import EnvDescription, EnvInput, EnvOutput, HistoryEntry, RolloutState
from turnwise.floor.seeds import derive_seed
from turnwise.rollout.limits import Limits
from turnwise.rollout.turn import info_of_turn, is_invalid_turn, is_successful_turn, play_actions
from turnwise.types import StepResult, StopReason, Task, TrajectoryId

_MAX_THREADS = 64
"""Slow environments that are waited for at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfigs:
    """Which tags play, and in how many groups each: `tags=("lake", "bandit"), n_groups=(6, 2)`."""

    tags: tuple[str, ...]
    n_groups: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.tags) != len(self.n_groups):
            raise ConfigError(
                f"{len(self.tags)} tags and {len(self.n_groups)} n_groups given; expected as many of each."
            )


@dataclass(slots=True, eq=False)
class _Episode:
    env_id: int
    group_id: int
    id: TrajectoryId
    task: Task
    env: BaseEnv
    about: EnvDescription = field(default_factory=EnvDescription)
    history: list[HistoryEntry] = field(default_factory=list)
    num_actions: int = 0
    is_success: bool = False
    stop_reason: StopReason | None = None
    failure: str = ""
    attempt: int = 0
    """0 for the first; higher after failures."""
    is_env_lost: bool = False
    """Whether a call that nobody waits for any more may still be running in the environment."""

    def output(self) -> EnvOutput:
        return EnvOutput(
            env_id=self.env_id,
            group_id=self.group_id,
            tag=self.task.tag,
            history=tuple(self.history),
            penalty=sum(entry.penalty for entry in self.history),
            about=self.about,
        )


class EnvStateManager:
    """All environments of a rollout; `reset`, then `step` until nothing comes back, then `get_rollout_states`."""

    def __init__(
        self,
        make_env: Callable[[str, str], BaseEnv],
        *,
        env_groups: int,
        group_size: int,
        env_configs: EnvConfigs,
        limits: Limits | Mapping[str, Limits],
        split: str = "train",
        invalid_penalty: float = 0.0,
        first_seed: int = 0,
    ) -> None:
        """`make_env(tag, split)` builds an environment; `limits` are for all tags, or for each its own.

        `first_seed` is where `reset()` starts to count tasks.
        """
        if sum(env_configs.n_groups) != env_groups:
            raise ConfigError(
                f"env_configs.n_groups {list(env_configs.n_groups)} adds up to {sum(env_configs.n_groups)}; "
                f"expected env_groups = {env_groups}."
            )
        self.env_groups = env_groups
        self.group_size = group_size
        self.env_configs = env_configs
        self.env_seconds = 0.0
        """Time spent inside environments so far."""
        self._make_env = make_env
        self._limits = limits
        self._split = split
        self._invalid_penalty = invalid_penalty
        self._tasks = SeedTasks(env_configs.tags, env_configs.n_groups, first_seed, split)
        self._spare: defaultdict[str, list[BaseEnv]] = defaultdict(list)
        self._episodes: dict[int, _Episode] = {}
        self._threads = ThreadPoolExecutor(_MAX_THREADS)
        self._num_rollouts = 0

    def reset(self, seed: int | None = None) -> list[EnvOutput]:
        """Start the next `env_groups` tasks (from `seed` on, if given) and return every environment's first state."""
        if seed is not None:
            self._tasks = SeedTasks(self.env_configs.tags, self.env_configs.n_groups, seed, self._split)
        return self.begin(self._tasks.take(self.env_groups))

    def begin(self, tasks: Sequence[Task], *, rollout: int | None = None) -> list[EnvOutput]:
        """Start `group_size` siblings of each task; `rollout` numbers the trajectories (default: counted here)."""
        self.place(tasks, rollout=rollout)
        waiting = [episode for episode in self._episodes.values() if episode.env.is_slow]
        list(self._threads.map(self._start, waiting))
        for episode in self._episodes.values():
            if not episode.env.is_slow:
                self._start(episode)
        return [e.output() for e in self._episodes.values() if e.stop_reason is None]

    def place(self, tasks: Sequence[Task], *, rollout: int | None = None) -> None:
        """Give `group_size` siblings of each task their environments; `start_one` then starts them one by one."""
        number = self._num_rollouts if rollout is None else rollout
        self._num_rollouts = number + 1
        for episode in self._episodes.values():
            if not episode.is_env_lost:
                self._spare[episode.task.tag].append(episode.env)
        self._episodes = {}
        for group_id, task in enumerate(tasks):
            for sibling in range(self.group_size):
                self._place(group_id, task, TrajectoryId(number, task.id, sibling))

    async def start_one(self, env_id: int) -> EnvOutput | None:
        """Reset one environment, without holding up the others where it is slow; None: that failed."""
        episode = self._running(env_id)
        if episode.env.is_slow:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._start, episode)
        else:
            self._start(episode)
        return episode.output() if episode.stop_reason is None else None

    def step(self, env_inputs: Sequence[EnvInput | Mapping[str, object]]) -> list[EnvOutput]:
        """Play one turn in the given environments; returns those whose episode goes on."""
        going_on = []
        for given in env_inputs:
            env_input = given if isinstance(given, EnvInput) else _as_env_input(given)
            episode = self._running(env_input.env_id)
            self._play_turn(episode, env_input)
            if episode.stop_reason is None:
                going_on.append(episode.output())
        return going_on

    async def step_one(self, env_input: EnvInput) -> EnvOutput | None:
        """Play one turn in one environment, without holding up the others where it is slow; None: its episode ended."""
        episode = self._running(env_input.env_id)
        if episode.env.is_slow:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self._play_turn, episode, env_input)
        else:
            self._play_turn(episode, env_input)
        return episode.output() if episode.stop_reason is None else None

    def stop(self, env_id: int, reason: StopReason, failure: str = "") -> None:
        """End an episode from outside: a token budget, or an engine that failed."""
        episode = self._running(env_id)
        episode.stop_reason, episode.failure = reason, failure

    def abandon(self, env_id: int, reason: StopReason, failure: str) -> None:
        """End an episode whose environment may still be busy; the environment is closed and never used again."""
        episode = self._episode(env_id)
        if episode.stop_reason is None:
            episode.stop_reason, episode.failure = reason, failure
        if not episode.history:
            # It hung in its reset: there is no first state.
            episode.history.append(HistoryEntry(state="", actions_left=0))
        episode.is_env_lost = True
        # Closing may take as long as the call that hangs.
        self._threads.submit(episode.env.close)

    async def restart(self, env_id: int, attempt: int) -> EnvOutput | None:
        """Begin an episode anew in a fresh environment, after it failed; None: the reset failed again."""
        old = self._episode(env_id)
        if not old.is_env_lost:
            self.abandon(env_id, StopReason.ENV_ERROR, old.failure)
        env = self._make_env(old.task.tag, self._split)
        episode = _Episode(env_id, old.group_id, old.id, old.task, env, attempt=attempt)
        self._episodes[env_id] = episode
        return await self.start_one(env_id)

    def oracle_action(self, env_id: int) -> str:
        """What the environment's oracle would do now; EnvError where there is none."""
        return str(call_env(self._running(env_id).env, "oracle"))

    def get_rollout_states(self, env_ids: Sequence[int] | None = None) -> list[RolloutState]:
        """How the episodes ended (all, or the given ones), with their metrics."""
        chosen = self._episodes if env_ids is None else env_ids
        return [self._rollout_state(self._episode(env_id)) for env_id in chosen]

    def close(self) -> None:
        self._threads.shutdown()
        for env in [e.env for e in self._episodes.values()] + [env for pool in self._spare.values() for env in pool]:
            env.close()
        self._episodes, self._spare = {}, defaultdict(list)

    # --- one episode ---------------------------------------------------------------------------------------------

    def _place(self, group_id: int, task: Task, trajectory_id: TrajectoryId) -> None:
        """Give an episode its environment."""
        env = self._spare[task.tag].pop() if self._spare[task.tag] else self._make_env(task.tag, self._split)
        env_id = len(self._episodes)
        self._episodes[env_id] = _Episode(env_id, group_id, trajectory_id, task, env)

    def _start(self, episode: _Episode) -> None:
        task = episode.task
        with self._timed(episode.env):
            try:
                again = (episode.attempt,) if episode.attempt else ()
                dynamics_seed = derive_seed(str(episode.id), *again)
                state = reset_env(episode.env, seed=task.seed, split=task.split, dynamics_seed=dynamics_seed)
                episode.about = describe_env(episode.env)
            except (EnvError, TaskError) as error:
                state, episode.stop_reason, episode.failure = "", StopReason.ENV_ERROR, str(error)
        episode.history.append(HistoryEntry(state=state, actions_left=self._actions_left(episode)))

    @contextmanager
    def _timed(self, env: BaseEnv) -> Iterator[None]:
        """Charge the time to environments; while a slow one is waited for, others play, so its wait is nobody's."""
        started = time.perf_counter()
        yield
        if not env.is_slow:
            self.env_seconds += time.perf_counter() - started

    def _play_turn(self, episode: _Episode, env_input: EnvInput) -> None:
        before = episode.history[-1]
        with self._timed(episode.env):
            try:
                results = self._play_actions(episode, env_input.actions)
            except (EnvError, RewardError) as error:
                results, episode.stop_reason, episode.failure = [], StopReason.ENV_ERROR, str(error)
        last = results[-1] if results else None
        is_invalid = is_invalid_turn(results, is_well_formed=env_input.is_well_formed)
        episode.history[-1] = HistoryEntry(
            state=before.state,
            actions_left=before.actions_left,
            actions=env_input.actions[: len(results)],
            reward=sum(result.reward for result in results),
            penalty=self._invalid_penalty if is_invalid else 0.0,
            info=info_of_turn(results),
            llm_response=env_input.llm_response,
        )
        if episode.stop_reason is None:
            num_turns = len(episode.history)
            limits = self._limits_of(episode)
            episode.stop_reason = limits.find_stop(last, num_actions=episode.num_actions, num_turns=num_turns)
            episode.is_success = is_successful_turn(results)
        state = last.text if last is not None else before.state
        episode.history.append(HistoryEntry(state=state, actions_left=self._actions_left(episode)))

    def _play_actions(self, episode: _Episode, actions: Sequence[str]) -> list[StepResult]:
        budget = self._limits_of(episode).max_actions
        left = None if budget is None else budget - episode.num_actions
        results: list[StepResult] = []
        for result in play_actions(episode.env, actions, max_actions=left):
            results.append(result)
            episode.num_actions += 1
        return results

    def _limits_of(self, episode: _Episode) -> Limits:
        return self._limits[episode.task.tag] if isinstance(self._limits, Mapping) else self._limits

    def _actions_left(self, episode: _Episode) -> int:
        return self._limits_of(episode).actions_left(episode.num_actions, len(episode.history))

    def _episode(self, env_id: int) -> _Episode:
        if env_id not in self._episodes:
            raise EnvError(f"env_id {env_id} given; this rollout has 0 to {len(self._episodes) - 1}. Call reset first.")
        return self._episodes[env_id]

    def _running(self, env_id: int) -> _Episode:
        episode = self._episode(env_id)
        if episode.stop_reason is not None:
            raise EnvError(f"episode {episode.id} is over ({episode.stop_reason}); it takes no further step.")
        return episode

    # --- what came out -------------------------------------------------------------------------------------------

    def _rollout_state(self, episode: _Episode) -> RolloutState:
        if episode.stop_reason is None:
            raise EnvError(f"episode {episode.id} is still running; step or stop it before asking how it ended.")
        output = episode.output()
        return RolloutState(
            env_id=output.env_id,
            group_id=output.group_id,
            tag=output.tag,
            history=output.history,
            penalty=output.penalty,
            about=output.about,
            id=episode.id,
            task=episode.task,
            stop_reason=episode.stop_reason,
            is_success=episode.is_success,
            failure=episode.failure,
            metrics=self._metrics(episode),
        )

    def _metrics(self, episode: _Episode) -> dict[str, float]:
        tag = episode.task.tag
        first = episode.group_id * self.group_size
        siblings = [self._episodes[env_id] for env_id in range(first, first + self.group_size)]
        metrics = {
            f"{tag}/success": float(episode.is_success),
            f"{tag}/num_actions": float(episode.num_actions),
            f"{tag}/pass@{self.group_size}": float(any(e.is_success for e in siblings)),
        }
        turns = episode.history[:-1]
        for key in ("action_is_valid", "action_is_effective"):
            metrics[f"{tag}/{key}"] = sum(bool(entry.info.get(key)) for entry in turns) / max(len(turns), 1)
        return metrics


def _as_env_input(given: Mapping[str, object]) -> EnvInput:
    actions = given.get("actions", ())
    if not isinstance(actions, Sequence) or isinstance(actions, str):
        raise EnvError(f"env input 'actions' is {actions!r}; expected a list of strings.")
    return EnvInput(
        env_id=int(str(given["env_id"])),
        actions=tuple(str(action) for action in actions),
        llm_response=str(given.get("llm_response", "")),
        is_well_formed=bool(actions),
    )
