"""Task families of the package reasoning-gym: `reasoning_gym:NAME`, such as `reasoning_gym:leg_counting`.

In comes the name of a family; out comes an environment class with one question and one answer per episode. It refuses
to know any family; the package scores the answers. An answer that makes a scorer stumble is an invalid action.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

from pydantic import Field

from turnwise.config.settings import Settings, require_package
from turnwise.envs.adapters.external import Option, define_env, is_valid_reply, require_env_id, split_seed
from turnwise.envs.adapters.function_env import SingleTurnEnv, SingleTurnTask
from turnwise.errors import ConfigError, EnvError, did_you_mean

_OURS = frozenset({"seed", "size"})
_COSTLY_S = 0.02
"""From here on a family is worth keeping."""
_NUM_REMEMBERED = 64
_PROBES = (2, 5)
"""Seeds whose items tell whether a family that is kept gives what a new one would."""
_MAX_ATTEMPTS = 100
"""A question whose right answer cannot be given as an action, such as an empty one, is replaced by another."""
_NEXT_ATTEMPT = 1 << 24
"""From the seed of a question to that of its replacement: even, so that train and eval stay apart."""


class ReasoningGymParams(Settings):
    """The settings of a family of reasoning-gym."""

    options: dict[str, Option] = Field(default={})
    """The family's own settings, as the package names them: `{max_animals: 4}`."""
    success_above: float = Field(default=0.99, lt=1)
    """A score above this counts as a success; scores go from 0 to 1."""


class _Family:
    """One family with its options: what all worlds of it in a process share."""

    def __init__(self, package: Any, name: str, options: Mapping[str, Option]) -> None:
        # Of one item: some families prepare all their items at once.
        self._create = lambda seed: package.create_dataset(name, **options, seed=seed, size=1)
        self._name = name
        started_s = time.process_time()
        first = self._create(0)
        is_costly = time.process_time() - started_s > _COSTLY_S
        self._kept = first if is_costly and self._can_be_reseeded(first) else None
        """Where only the items depend on the seed, whatever else was loaded is loaded once."""
        self._remembered = lru_cache(_NUM_REMEMBERED)(self._make_task) if self._is_worth_remembering() else None
        # Some families have no stored answer, or one that their own scorer does not accept.
        probe = self.make_task(0, "train")
        self.has_oracle = probe.answer is not None and probe.grade(probe.answer) == 1

    def make_task(self, seed: int, split: str) -> SingleTurnTask:
        return (self._remembered or self._make_task)(seed, split)

    def _is_worth_remembering(self) -> bool:
        """Siblings ask for the same question; where it takes long to make, and comes out the same, it is made once."""
        started_s = time.process_time()
        first = self._make_question(0)
        is_costly = time.process_time() - started_s > _COSTLY_S
        return is_costly and first.prompt == self._make_question(0).prompt

    def _make_task(self, seed: int, split: str) -> SingleTurnTask:
        for attempt in range(_MAX_ATTEMPTS):
            task = self._make_question(split_seed(seed, split) + attempt * _NEXT_ATTEMPT)
            if task.answer is None or is_valid_reply(task.answer):
                return task
        raise EnvError(
            f"reasoning_gym:{self._name}: {_MAX_ATTEMPTS} questions in a row had answers that cannot be given."
        )

    def _make_question(self, seed: int) -> SingleTurnTask:
        family = self._create(seed) if self._kept is None else _reseeded(self._kept, seed)
        item = family[0]
        answer = item["answer"] if isinstance(item["answer"], str) else None
        return SingleTurnTask(item["question"], lambda reply: family.score_answer(reply, item), answer)

    def _can_be_reseeded(self, first: Any) -> bool:
        try:
            return all(_reseeded(first, seed)[0] == self._create(seed)[0] for seed in _PROBES)
        except Exception:  # noqa: BLE001 - the boundary: a family of any shape; then each task has one of its own
            return False


def _reseeded(family: Any, seed: int) -> Any:
    copied = copy.copy(family)
    copied.seed, copied.config = seed, replace(family.config, seed=seed)
    return copied


@lru_cache(maxsize=64)
def _load_family(name: str, options: str) -> _Family:
    """`options` as JSON, which can be told apart."""
    package = require_package("reasoning_gym", extra="reasoning-gym", asked_by=f"reasoning_gym:{name}")
    return _Family(package, name, json.loads(options))


class ReasoningGymEnv(SingleTurnEnv):
    """One item of a family, scored by the package."""

    Params: ClassVar[type[Settings]] = ReasoningGymParams
    family: ClassVar[str] = ""

    params: ReasoningGymParams

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        if given := _OURS & self.params.options.keys():
            raise ConfigError(f"env '{self.label()}': options sets {', '.join(given)}, which the task decides.")
        options = json.dumps(self.params.options, sort_keys=True)
        self._family: _Family = self._make(_load_family, name=self.family, options=options)
        self.has_oracle = self._family.has_oracle

    def step(self, action: str) -> tuple[str, Any, bool, dict[str, object]]:
        self._require_playing()
        try:
            return super().step(action)
        except Exception:  # noqa: BLE001 - the boundary: scorers raise whatever they like about a senseless answer
            return self._refuse()

    def _make_task(self, seed: int, split: str) -> SingleTurnTask:
        return self._family.make_task(seed, split)


@lru_cache
def adapt_reasoning_gym(family: str) -> type[ReasoningGymEnv]:
    """The environment class of a family."""
    require_env_id(family, "reasoning_gym:leg_counting")
    name = f"reasoning_gym:{family}"
    known = require_package("reasoning_gym.factory", extra="reasoning-gym", asked_by=name).DATASETS
    if family not in known:
        raise ConfigError(f"environment '{name}': reasoning-gym has no such family. {did_you_mean(family, known)}")
    return define_env(ReasoningGymEnv, name=name, family=family)
