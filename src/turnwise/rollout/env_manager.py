"""Groups of environments by tag: the worlds of one rollout, stepped in any subset and any order.

In: tasks and actions. Out: histories, and how each episode ended. Siblings of a group share the layout seed and have
dynamics of their own. A failing environment ends its own episode and nothing else. It knows nothing of tokens.
Workflows take their episodes from it one by one (`open`); whoever drives a rollout by hand calls `reset` and `step`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from turnwise.context.answer import ParsedAnswer
from turnwise.envs.base import BaseEnv, SeedTasks, make_env
from turnwise.errors import ConfigError, EnvError, did_you_mean
from turnwise.infra.seeds import derive_seed
from turnwise.infra.threads import DaemonThreads
from turnwise.rollout.episode import EnvEpisode, EnvPool, Limits
from turnwise.rollout_io import EnvInput, EnvOutput, RolloutState
from turnwise.types import StopReason, Task, TrajectoryId

_KEYS = ("env_groups", "group_size", "env_configs")


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

    @classmethod
    def read(cls, given: EnvConfigs | Mapping[str, Any], env_groups: int) -> EnvConfigs:
        """As they are, or from `{"tags": [...], "n_groups": [...]}`; one tag alone may leave `n_groups` out."""
        if isinstance(given, EnvConfigs):
            return given
        keys = ("tags", "n_groups")
        for key in given:
            if key not in keys:
                raise ConfigError(f"env_configs.{key}: there is no such key. {did_you_mean(str(key), keys)}")
        tags, n_groups = given.get("tags"), given.get("n_groups")
        if not _is_list(tags, str) or not tags:
            raise ConfigError(f"env_configs.tags: {tags!r} given; expected a list such as ['FrozenLake', 'Sokoban'].")
        if n_groups is None and len(tags) == 1:
            n_groups = [env_groups]
        if n_groups is None or not _is_list(n_groups, int):
            raise ConfigError(f"env_configs.n_groups: {n_groups!r} given; expected a number of groups for each tag.")
        return cls(tags=tuple(tags), n_groups=tuple(n_groups))


def _is_list(given: object, kind: type) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, str) and all(isinstance(one, kind) for one in given)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvGroups:
    """The groups of a rollout: `env_groups` in all, of `group_size` siblings each, shared out over tags."""

    env_groups: int
    group_size: int
    env_configs: EnvConfigs

    def __post_init__(self) -> None:
        n_groups = self.env_configs.n_groups
        if sum(n_groups) != self.env_groups:
            raise ConfigError(
                f"env_configs.n_groups {list(n_groups)} adds up to {sum(n_groups)}; expected env_groups = "
                f"{self.env_groups}."
            )

    @classmethod
    def read(cls, config: Mapping[str, Any], split: str, **given: Any) -> EnvGroups:
        """`given` counts before what stands in `config`."""
        found = {**find_section(config, split), **{key: value for key, value in given.items() if value is not None}}
        if missing := [key for key in _KEYS if key not in found]:
            raise ConfigError(f"{missing[0]} is missing; EnvStateManager needs {', '.join(_KEYS)}.")
        numbers = {key: found[key] for key in ("env_groups", "group_size")}
        for key, number in numbers.items():
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ConfigError(f"{key}: {number!r} given; expected a whole number above 0.")
        configs = found["env_configs"]
        if not isinstance(configs, EnvConfigs | Mapping):
            raise ConfigError(f"env_configs: {configs!r} given; expected a section with tags and n_groups.")
        return cls(**numbers, env_configs=EnvConfigs.read(configs, numbers["env_groups"]))


def find_section(config: Mapping[str, Any], split: str) -> dict[str, Any]:
    """The numbers of a split, wherever in the layout the mapping begins."""
    found: Any = config
    for key in ("es_manager", "train" if split == "train" else "val"):
        found = found.get(key, found)
        if not isinstance(found, Mapping):
            raise ConfigError(f"{key}: {found!r} given; expected a section with {', '.join(_KEYS)}.")
    return {key: found[key] for key in _KEYS if key in found}


_MAX_THREADS = 64
"""Slow environments that are waited for at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Place:
    """Where an episode stands in a rollout that is driven by hand."""

    env_id: int
    group_id: int
    id: TrajectoryId
    episode: EnvEpisode

    def output(self) -> EnvOutput:
        return EnvOutput(**_output_fields(self))


def _output_fields(place: _Place) -> dict[str, Any]:
    episode = place.episode
    return {
        "env_id": place.env_id,
        "group_id": place.group_id,
        "tag": episode.task.tag,
        "history": tuple(episode.history),
        "penalty": sum(entry.penalty for entry in episode.history),
        "about": episode.about,
    }


class EnvStateManager:
    """All environments of a rollout; `reset`, then `step` until nothing comes back, then `get_rollout_states`."""

    def __init__(
        self,
        make_env: Callable[[str, str], BaseEnv] | Mapping[str, Any] | None = None,
        split: str = "train",
        *,
        env_groups: int | None = None,
        group_size: int | None = None,
        env_configs: EnvConfigs | Mapping[str, Any] | None = None,
        limits: Limits | Mapping[str, Limits] = Limits(max_turns=5),  # noqa: B008 - frozen
        invalid_penalty: float = 0.0,
        first_seed: int = 0,
    ) -> None:
        """`make_env(tag, split)` builds an environment; without it, a tag is the name of one.

        In its place a mapping in RAGEN's layout may be given: `EnvStateManager({"es_manager": {"train": {...}}})`.
        `limits` are for all tags, or for each its own. `first_seed` is where `reset()` starts to count tasks.
        """
        layout = make_env if isinstance(make_env, Mapping) else {}
        groups = EnvGroups.read(layout, split, env_groups=env_groups, group_size=group_size, env_configs=env_configs)
        self.env_groups = groups.env_groups
        self.group_size = groups.group_size
        self.env_configs = groups.env_configs
        self.make_env = make_env if callable(make_env) else _make_named
        self._limits = limits
        self._split = split
        self.invalid_penalty = invalid_penalty
        self._tasks = SeedTasks(self.env_configs.tags, self.env_configs.n_groups, first_seed, split)
        self._threads = DaemonThreads(_MAX_THREADS, "environment")
        self._pools: dict[str, EnvPool] = {}
        self._places: dict[int, _Place] = {}
        self._num_rollouts = 0

    @property
    def env_seconds(self) -> float:
        """Time spent inside environments so far."""
        return sum(pool.seconds for pool in self._pools.values())

    def open(
        self, task: Task, trajectory: TrajectoryId, *, attempt: int = 0, max_turns: int | None = None
    ) -> EnvEpisode:
        """An environment for one episode; attempts above 0 come after one that failed, and have dice of their own."""
        limits = self.limits_of(task.tag)
        return EnvEpisode(
            self._pool(task.tag),
            task,
            limits=limits if max_turns is None else limits.shortened(max_turns),
            invalid_penalty=self.invalid_penalty,
            dynamics_seed=dynamics_seed(trajectory, attempt),
        )

    def _pool(self, tag: str) -> EnvPool:
        if tag not in self._pools:
            self._pools[tag] = EnvPool(partial(self.make_env, tag, self._split), self._threads)
        return self._pools[tag]

    def limits_of(self, tag: str) -> Limits:
        return self._limits[tag] if isinstance(self._limits, Mapping) else self._limits

    def close(self) -> None:
        self._give_back()
        for pool in self._pools.values():
            pool.close()
        self._threads.shutdown()

    # --- a rollout by hand ---------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None) -> list[EnvOutput]:
        """Start the next `env_groups` tasks (from `seed` on, if given) and return every environment's first state."""
        if seed is not None:
            self._tasks = SeedTasks(self.env_configs.tags, self.env_configs.n_groups, seed, self._split)
        return self.begin(self._tasks.take(self.env_groups))

    def begin(self, tasks: Sequence[Task], *, rollout: int | None = None) -> list[EnvOutput]:
        """Start `group_size` siblings of each task; `rollout` numbers the trajectories (default: counted here)."""
        number = self._num_rollouts if rollout is None else rollout
        self._num_rollouts = number + 1
        self._give_back()
        for group_id, task in enumerate(tasks):
            for sibling in range(self.group_size):
                name = TrajectoryId(number, task.id, sibling)
                place = _Place(env_id=len(self._places), group_id=group_id, id=name, episode=self.open(task, name))
                self._places[place.env_id] = place
        self._start_all()
        return [place.output() for place in self._places.values() if place.episode.stop_reason is None]

    def step(self, env_inputs: Sequence[EnvInput | Mapping[str, object]]) -> list[EnvOutput]:
        """Play one turn in the given environments; returns those whose episode goes on."""
        going_on = []
        for given in env_inputs:
            env_input = EnvInput.read(given)
            place = self._running(env_input.env_id)
            answer = ParsedAnswer(env_input.actions, env_input.is_well_formed, "")
            place.episode.play(answer, env_input.llm_response)
            if place.episode.stop_reason is None:
                going_on.append(place.output())
        return going_on

    def stop(self, env_id: int, reason: StopReason, failure: str = "") -> None:
        """End an episode from outside: a token budget, or an engine that failed."""
        self._running(env_id).episode.stop(reason, failure)

    def get_rollout_states(self, env_ids: Sequence[int] | None = None) -> list[RolloutState]:
        """How the episodes ended (all, or the given ones), with their metrics."""
        chosen = self._places if env_ids is None else env_ids
        return [self._rollout_state(self._place(env_id)) for env_id in chosen]

    def _start_all(self) -> None:
        episodes = [place.episode for place in self._places.values()]
        list(self._threads.map(EnvEpisode.start, [episode for episode in episodes if episode.env.is_slow]))
        for episode in episodes:
            if not episode.env.is_slow:
                episode.start()

    def _give_back(self) -> None:
        for place in self._places.values():
            place.episode.close()
        self._places = {}

    def _place(self, env_id: int) -> _Place:
        if env_id not in self._places:
            raise EnvError(f"env_id {env_id} given; this rollout has 0 to {len(self._places) - 1}. Call reset first.")
        return self._places[env_id]

    def _running(self, env_id: int) -> _Place:
        place = self._place(env_id)
        if place.episode.stop_reason is not None:
            raise EnvError(f"episode {place.id} is over ({place.episode.stop_reason}); it takes no further step.")
        return place

    # --- what came out -------------------------------------------------------------------------------------------

    def _rollout_state(self, place: _Place) -> RolloutState:
        episode = place.episode
        if episode.stop_reason is None:
            raise EnvError(f"episode {place.id} is still running; step or stop it before asking how it ended.")
        return RolloutState(
            **_output_fields(place),
            id=place.id,
            task=episode.task,
            stop_reason=episode.stop_reason,
            is_success=episode.is_success,
            failure=episode.failure,
            metrics=self._metrics(place),
        )

    def _metrics(self, place: _Place) -> dict[str, float]:
        episode, tag = place.episode, place.episode.task.tag
        siblings = [other.episode for other in self._places.values() if other.group_id == place.group_id]
        turns = episode.history[:-1]
        num_turns = max(len(turns), 1)
        return {
            f"{tag}/success": float(episode.is_success),
            f"{tag}/num_actions": float(episode.num_actions),
            f"{tag}/pass@{self.group_size}": float(any(sibling.is_success for sibling in siblings)),
            f"{tag}/action_is_valid": sum(entry.is_valid for entry in turns) / num_turns,
            f"{tag}/action_is_effective": sum(entry.is_effective for entry in turns) / num_turns,
        }


def dynamics_seed(trajectory: TrajectoryId, attempt: int) -> int:
    """For the chances taken while playing: siblings have different ones, and so has another attempt."""
    return derive_seed(str(trajectory), *((attempt,) if attempt else ()))


def _make_named(tag: str, _split: str) -> BaseEnv:
    return make_env(tag)
