"""Task families of the package reasoning-gym: `reasoning_gym:NAME`, such as `reasoning_gym:leg_counting`.

In comes the name of a family; out comes an environment class with one question and one answer per episode. It refuses
to know any family; the package scores the answers. An answer that makes a scorer stumble is an invalid action.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, cast

from pydantic import Field

from turnwise.config.packages import require_package
from turnwise.config.settings import Settings
from turnwise.envs.adapters.foreign import Option, is_playable, require_rest, seed_for
from turnwise.envs.adapters.one_turn import OneTurnTask, OneTurnWorld
from turnwise.errors import ConfigError, EnvError, did_you_mean

_OURS = frozenset({"seed", "size"})
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


class ReasoningGymWorld(OneTurnWorld):
    """One item of a family, scored by the package."""

    Params: ClassVar[type[Settings]] = ReasoningGymParams
    family: ClassVar[str] = ""

    params: ReasoningGymParams

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        if given := _OURS & self.params.options.keys():
            raise ConfigError(f"env '{self.label()}': options sets {', '.join(given)}, which the task decides.")
        self._package = require_package("reasoning_gym", extra="reasoning-gym", asked_by=self.label())
        self._make(self._make_family, seed=0)
        # Some families have no stored answer, or one that their own scorer does not accept.
        with self._rngs.inside():
            probe = self._make_task(0, "train")
            self.has_oracle = probe.answer is not None and probe.grade(probe.answer) == 1

    def step(self, action: str) -> tuple[str, Any, bool, dict[str, object]]:
        self._require_playing()
        try:
            return super().step(action)
        except Exception:  # noqa: BLE001 - the boundary: scorers raise whatever they like about a senseless answer
            return self._refuse()

    def _make_family(self, seed: int) -> Any:
        """Of one item: some families prepare all their items at once, so every task has a family of its own."""
        return self._package.create_dataset(self.family, **self.params.options, seed=seed, size=1)

    def _make_task(self, seed: int, split: str) -> OneTurnTask:
        for attempt in range(_MAX_ATTEMPTS):
            task = self._make_question(seed_for(seed, split) + attempt * _NEXT_ATTEMPT)
            if task.answer is None or is_playable(task.answer):
                return task
        raise EnvError(f"{self.label()}: {_MAX_ATTEMPTS} questions in a row had answers that cannot be given.")

    def _make_question(self, seed: int) -> OneTurnTask:
        family = self._make_family(seed)
        item = family[0]
        answer = item["answer"] if isinstance(item["answer"], str) else None
        return OneTurnTask(item["question"], lambda reply: family.score_answer(reply, item), answer)


@lru_cache
def adapt_reasoning_gym(family: str) -> type[ReasoningGymWorld]:
    """The environment class of a family."""
    require_rest(family, "reasoning_gym:leg_counting")
    name = f"reasoning_gym:{family}"
    known = require_package("reasoning_gym.factory", extra="reasoning-gym", asked_by=name).DATASETS
    if family not in known:
        raise ConfigError(f"environment '{name}': reasoning-gym has no such family. {did_you_mean(family, known)}")
    members = {"name": name, "family": family, "__module__": __name__}
    return cast("type[ReasoningGymWorld]", type("ReasoningGymWorld", (ReasoningGymWorld,), members))
