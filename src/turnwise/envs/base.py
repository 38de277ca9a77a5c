"""Base class for text environments, in the style of `gymnasium.Env`, and endless tasks drawn from seeds.

`reset` and `step` return the environment's own text, raw rewards and facts about each action. Prompts, answer formats
and penalties belong to `turnwise.context` and `turnwise.rollout`.
"""

from __future__ import annotations

import importlib
import inspect
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import ValidationError

from turnwise.config.component import ENVS
from turnwise.config.settings import Settings, describe_problems
from turnwise.errors import ConfigError, EnvError, TaskError, TurnwiseError
from turnwise.infra.untrusted import format_error
from turnwise.types import Group, Task

REQUIRED_INFO_KEYS = ("success", "action_is_valid", "action_is_effective")


class BaseEnv(ABC):
    """Subclass it, list your settings in `Params`, and write `reset` and `step`.

    `reset` and `step` return the environment's own text only; legends, action lists and format hints are added by the
    context. `info` always holds `success`, `action_is_valid` and `action_is_effective`. An answer that means nothing
    here is not an error: reward 0, state unchanged, `action_is_valid` false. A time limit of the environment's own is
    reported as done with `info["truncated"] = True`, or with Gymnasium's five values.
    """

    name: ClassVar[str] = ""
    """How messages call it; the class name where empty."""
    Params: ClassVar[type[Settings]] = Settings
    rewards: ClassVar[str] = ""
    """What is paid for, in a few words for people."""
    data: ClassVar[str] = "built in"
    """What it is made from, in a few words for people: made here, a file, or a package."""
    splits: ClassVar[tuple[str, ...]] = ("train", "eval")
    has_oracle: bool = False
    is_judged: ClassVar[bool] = False
    """Its rewards come from a judge: `reward.judge`."""
    is_slow: bool = False
    """A call may wait: it is made in a thread, and others go on meanwhile. Its time is then not counted as time in
    environments. With `rollout.episode_timeout_s` every environment of your own is taken for one."""
    state_fields: ClassVar[tuple[str, ...]] = ()
    """Attributes that hold the state of an episode, beside its phase. Immutable values or `random.Random`; with them
    `snapshot` and `restore` work."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Modules that an instance imports when it is made; where many processes play it, they are imported once."""
    baselines: ClassVar[Mapping[str, Callable[[Any], str]]] = {}
    """Simple rules to compare a policy with: each takes the environment and returns an action."""

    params: Any
    """The validated settings, an instance of `Params`; subclasses narrow the annotation."""
    _phase: Literal["new", "playing", "over"] = "new"

    def __init__(self, **params: object) -> None:
        try:
            self.params = self.Params(**params)
        except ValidationError as error:
            raise ConfigError(f"env '{type(self).label()}': {describe_problems(error, self.Params)}") from error

    @classmethod
    def label(cls) -> str:
        return cls.name or cls.__name__

    @classmethod
    def load_packages(cls) -> None:
        """Import `packages`."""
        for name in cls.packages:
            importlib.import_module(name)

    @abstractmethod
    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        """Begin an episode and return its first text.

        `seed` chooses the layout, which siblings share (None: a fresh one); `dynamics_seed` chooses the chances taken
        while playing, which they do not share (None: derived from `seed`).
        """

    @abstractmethod
    def step(self, action: str) -> tuple[Any, ...]:
        """Observation, reward, done, info; Gymnasium's five values are understood as well."""

    def render(self) -> str:
        """The current observation."""
        raise EnvError(f"{self.label()} has no render().")

    def close(self) -> None:
        """Let go of whatever is held; most environments hold nothing."""
        return

    @property
    def action_names(self) -> tuple[str, ...] | None:
        """The actions of the current episode; None where any text is an action."""
        return None

    def admissible_actions(self) -> Sequence[str] | None:
        """Actions that are valid now, for random play; None where none are known. Where any text is an action: some."""
        return self.action_names

    @property
    def example(self) -> str:
        """An action to show the answer format with, where any text is one."""
        return ""

    @property
    def instructions(self) -> str:
        """What the game is, in one or two plain sentences."""
        return ""

    @property
    def legend(self) -> str:
        """What the symbols in the text mean; empty where there are none."""
        return ""

    def oracle(self) -> str:
        """The next optimal action."""
        raise EnvError(f"{self.label()} has no oracle.")

    def raw_task(self, seed: int, split: str = "train") -> Mapping[str, object]:
        """The row of data that `reset` with these begins; the two themselves where there are no rows."""
        return {"seed": seed, "split": split}

    def num_tasks(self, split: str = "train") -> int | None:
        """How many tasks a split has, each of them once in as many seeds that follow each other; None: without end."""
        return None

    def snapshot(self) -> object:
        """Return the state of the episode for `restore`."""
        if not self.state_fields:
            raise EnvError(f"{self.label()} has no snapshots.")
        return tuple(_save_rng(getattr(self, name)) for name in (*self.state_fields, "_phase"))

    def restore(self, state: object) -> None:
        """Continue from a state that `snapshot` returned."""
        if not self.state_fields or not isinstance(state, tuple):
            raise EnvError(f"{self.label()} has no snapshots.")
        for name, value in zip((*self.state_fields, "_phase"), state, strict=True):
            setattr(self, name, _load_rng(value) if isinstance(value, _RngState) else value)

    def _require_playing(self) -> None:
        """For the first line of `step`; `reset` and the last step keep `_phase`."""
        if self._phase == "over":
            raise EnvError(f"{self.label()}: the episode is over; call reset.")
        if self._phase == "new":
            raise EnvError(f"{self.label()}: there is no episode yet; call reset first.")


class _RngState(NamedTuple):
    state: tuple[Any, ...]


def _save_rng(value: object) -> object:
    return _RngState(value.getstate()) if isinstance(value, random.Random) else value


def _load_rng(saved: _RngState) -> random.Random:
    rng = random.Random()
    rng.setstate(saved.state)
    return rng


def check_split(split: str, known: tuple[str, ...], label: str) -> None:
    if split not in known:
        raise TaskError(f"{label}: there is no split '{split}'. Known: {', '.join(known)}.")


def make_env(name: str, **params: object) -> BaseEnv:
    """`make_env("frozen_lake", size=4)`, or your own class as `make_env("my_package.my_env:MyEnv")`."""
    target, params = ENVS.get_target(name), {**ENVS.resolve_alias(name).params, **params}
    if not callable(target) or (isinstance(target, type) and not issubclass(target, BaseEnv)):
        raise ConfigError(_expected_env(name, target))
    if isinstance(target, type) and inspect.isabstract(target):
        missing = " and ".join(sorted(getattr(target, "__abstractmethods__", ())))
        raise ConfigError(f"environment '{name}' has no {missing}; a class that extends BaseEnv writes reset and step.")
    try:
        env = target(**params)
    except TurnwiseError:
        raise
    except Exception as error:  # an author's constructor may raise whatever it likes
        given = ", ".join(params) or "no settings"
        raise ConfigError(f"environment '{name}' cannot be made with {given}: {format_error(error)}") from error
    if not isinstance(env, BaseEnv):
        raise ConfigError(_expected_env(name, env))
    return env


def _expected_env(name: str, given: object) -> str:
    return f"environment '{name}' is {given!r}; expected a class that extends turnwise.envs.base.BaseEnv."


class SeedTasks:
    """An endless `TaskSource`, laid out tag by tag; its whole state is the next seed."""

    def __init__(self, tags: Sequence[str], num_groups: Sequence[int], first_seed: int, split: str = "train") -> None:
        check_tags(tags, num_groups)
        self.tags = tuple(tags)
        self.num_groups = tuple(num_groups)
        self.split = split
        self._next_seed = first_seed

    def take(self, num_tasks: int, *, besides: Sequence[Task] = ()) -> list[Task]:
        """The next tasks: all of the first tag, then all of the second, in proportion to their group counts."""
        shares = spread_over_tags(self.tags, self.num_groups, num_tasks)
        tags = [tag for tag, count in shares for _ in range(count)]
        tasks = [Task(tag=tag, seed=self._next_seed + offset, split=self.split) for offset, tag in enumerate(tags)]
        self._next_seed += num_tasks
        return tasks

    def feedback(self, groups: Sequence[Group]) -> None:
        """Nothing: no task comes a second time."""

    def state(self) -> Mapping[str, Any]:
        return {"next_seed": self._next_seed}

    def restore(self, state: Mapping[str, Any]) -> None:
        if "next_seed" not in state:
            raise TaskError(f"the state of a task source holds {sorted(state)}; expected 'next_seed'.")
        self._next_seed = state["next_seed"]


def check_tags(tags: Sequence[str], num_groups: Sequence[int]) -> None:
    """Every tag once, and at least one group of it."""
    if not tags or len(tags) != len(num_groups):
        raise TaskError(f"{len(tags)} tags and {len(num_groups)} group counts; expected one count for each tag.")
    if len(set(tags)) < len(tags):
        raise TaskError(f"the tags {', '.join(tags)} are not all different; add up the group counts of a tag.")
    if min(num_groups) < 1:
        raise TaskError(f"the group counts are {list(num_groups)}; expected at least 1 for each tag.")


def spread_over_tags(tags: Sequence[str], num_groups: Sequence[int], num_tasks: int) -> list[tuple[str, int]]:
    """How many tasks of each tag, in proportion to their group counts."""
    per_round = sum(num_groups)
    if num_tasks < 1 or num_tasks % per_round:
        raise TaskError(
            f"{num_tasks} tasks were asked for; expected a multiple of {per_round}, "
            f"the sum of the group counts {list(num_groups)}."
        )
    num_rounds = num_tasks // per_round
    return [(tag, count * num_rounds) for tag, count in zip(tags, num_groups, strict=True)]
