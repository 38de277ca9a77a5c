"""Worlds of the package gymnasium: `gymnasium:ID`, such as `gymnasium:FrozenLake-v1`.

In comes the id of a world; out comes an environment class that speaks text. It refuses worlds that cannot be told in
words (see `spaces.py`) and knows nothing of what they are about.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from types import ModuleType
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from turnwise.config.settings import Settings, require_package
from turnwise.envs.adapters.external import (
    ExternalEnv,
    Option,
    define_env,
    make_info,
    require_env_id,
    reward_value,
    split_seed,
)
from turnwise.errors import ConfigError

MAX_NUMBERS = 64
"""Most numbers in one observation, and most actions that are listed by name."""


def check_observations(space: Any, spaces: ModuleType, label: str) -> None:
    """Refuse what cannot be told in a few words."""
    if isinstance(space, spaces.Tuple):
        parts = list(space.spaces)
    elif isinstance(space, spaces.Dict):
        parts = list(space.spaces.values())
    else:
        parts = []
    for part in parts:
        check_observations(part, spaces, label)
    if parts or isinstance(space, (spaces.Text, spaces.Discrete)):
        return
    is_grid = isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box))
    is_whole = is_grid and np.issubdtype(space.dtype, np.integer)
    if not is_whole or int(np.prod(space.shape)) > MAX_NUMBERS:
        raise ConfigError(
            f"environment '{label}': its observations are {space}, which is no text; expected Text, Discrete, or at "
            f"most {MAX_NUMBERS} whole numbers (MultiDiscrete, MultiBinary, Box), alone or in a Tuple or Dict."
        )


def describe_observation(value: Any) -> str:
    """Numbers with blanks between them, rows on lines of their own, the parts of a Dict with their names."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "\n".join(f"{key}: {describe_observation(part)}" for key, part in value.items())
    if isinstance(value, tuple):
        return " ".join(describe_observation(part) for part in value)
    array = np.asarray(value)
    if array.ndim <= 1:
        return " ".join(str(number) for number in array.reshape(-1).tolist())
    return "\n".join(describe_observation(row) for row in array)


class Actions:
    """What may be answered, and what it means to the world."""

    def __init__(self, space: Any, spaces: ModuleType, names: Sequence[str], label: str) -> None:
        self._is_text = isinstance(space, spaces.Text)
        self._space = space
        values = [] if self._is_text else _list_values(space, spaces, label)
        if names and len(names) != len(values):
            raise ConfigError(
                f"environment '{label}': {len(names)} names are in env.action_words; expected {len(values)}, one for "
                "each action."
            )
        words = names or [describe_observation(value) for value in values]
        self._values = dict(zip(map(_fold, words), values, strict=True))
        if len(self._values) < len(values):
            raise ConfigError(f"environment '{label}': the names in env.action_words are not all different.")
        self.names = None if self._is_text else tuple(words)

    def parse(self, action: str) -> Any:
        """The value for a text; None where it names no action."""
        if self._is_text:
            return action if self._space.contains(action) else None
        return self._values.get(_fold(action))


def _fold(name: str) -> str:
    return " ".join(name.split()).casefold()


def _list_values(space: Any, spaces: ModuleType, label: str) -> list[Any]:
    if isinstance(space, spaces.Discrete) and space.n <= MAX_NUMBERS:
        return [int(space.start) + index for index in range(int(space.n))]
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and int(np.prod(space.nvec)) <= MAX_NUMBERS:
        starts = np.asarray(space.start)
        return [starts + np.array(each) for each in product(*(range(int(n)) for n in space.nvec))]
    raise ConfigError(
        f"environment '{label}': its actions are {space}; expected Text, or Discrete or MultiDiscrete with at most "
        f"{MAX_NUMBERS} actions."
    )


class GymnasiumParams(Settings):
    """The settings of a world of gymnasium."""

    options: dict[str, Option] = Field(default={})
    """Passed to `gymnasium.make`: `{is_slippery: false}`."""
    action_words: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """What each action is called, in order; empty: their numbers."""
    rules: str = ""
    """What the world is about, for the instructions; it does not say so itself."""
    success_above: float = 0.0
    """An episode that ends by itself with more reward than this in all counts as a success."""


class GymnasiumEnv(ExternalEnv):
    """One world of gymnasium."""

    Params: ClassVar[type[Settings]] = GymnasiumParams
    world_id: ClassVar[str] = ""

    params: GymnasiumParams

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        gymnasium = require_package("gymnasium", extra="gymnasium", asked_by=self.label())
        self._world = self._make(
            lambda **options: gymnasium.make(self.world_id, disable_env_checker=True, **options), **self.params.options
        )
        check_observations(self._world.observation_space, gymnasium.spaces, self.label())
        self._actions = Actions(self._world.action_space, gymnasium.spaces, self.params.action_words, self.label())
        self._text = ""
        self._earned = 0.0

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        seed, luck = self._begin(seed, split, dynamics_seed)
        with self._rngs.inside():
            observation, _ = self._world.reset(seed=split_seed(seed, split))
        # The layout is made; from here on chance is that of this episode alone.
        self._world.unwrapped.np_random = np.random.default_rng(luck)
        self._rngs.seed(luck)
        self._text, self._earned, self._phase = describe_observation(observation), 0.0, "playing"
        return self._text

    def step(self, action: str) -> tuple[Any, ...]:
        self._require_playing()
        value = self._actions.parse(action)
        if value is None:
            return self._text, 0.0, False, make_info(success=False, is_valid=False, is_effective=False)
        with self._rngs.inside():
            observation, reward, terminated, truncated, _ = self._world.step(value)
        before, self._text = self._text, describe_observation(observation)
        self._earned += reward_value(reward)
        self._phase = "over" if terminated or truncated else "playing"
        success = bool(terminated) and self._earned > self.params.success_above
        info = make_info(success=success, is_valid=True, is_effective=before != self._text)
        return self._text, reward, terminated, truncated, info

    def render(self) -> str:
        return self._text

    def close(self) -> None:
        self._world.close()

    @property
    def action_names(self) -> tuple[str, ...] | None:
        return self._actions.names

    @property
    def instructions(self) -> str:
        return self.params.rules


@lru_cache
def adapt_gymnasium(world_id: str) -> type[GymnasiumEnv]:
    """The environment class of an id."""
    require_env_id(world_id, "gymnasium:FrozenLake-v1")
    name = f"gymnasium:{world_id}"
    require_package("gymnasium", extra="gymnasium", asked_by=name)
    return define_env(GymnasiumEnv, name=name, world_id=world_id)
