"""Bandit: two arms or more, one pull; the steady arm pays little for sure, the risky arm pays more on average.

In come seeds and the name of an arm; out come the rules as text, and the payoff that ends the episode. It refuses to
know anything beyond one pull: what the arms are worth must be learnt over many episodes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field, model_validator

from turnwise.config.settings import Settings
from turnwise.envs.base import BaseEnv, check_split
from turnwise.infra.seeds import make_rng, random_seed

SPLITS = ("train", "eval")

# Lists are welcome where a pair is meant, because YAML knows no tuples.
Pair = Annotated[tuple[str, str], Field(strict=False)]


class ExtraArm(Settings):
    """An arm beside the steady and the risky one."""

    name: str
    """What it is called in training."""
    eval_name: str
    """What it is called in evaluation."""
    hint: str
    """What is said about it, where hints are given at all."""
    reward: float = Field(ge=0)
    """What it pays when it pays."""
    rate: float = Field(ge=0, le=1)
    """How often it pays."""


class Arm(NamedTuple):
    """An arm under its name in one split."""

    name: str
    hint: str
    reward: float
    rate: float

    @property
    def mean(self) -> float:
        return self.reward * self.rate


class BanditParams(Settings):
    """The settings of Bandit. Pairs name the steady arm first and the risky arm second."""

    names: Pair = ("Phoenix", "Dragon")
    """The arms in training; exchange the two for the reversed variant."""
    eval_names: Pair = ("Librarian", "Trader")
    """The arms in evaluation."""
    hints: Pair | None = ("steady", "daring")
    """What is said about each arm; null leaves it to the names alone."""
    low_reward: float = Field(default=0.1, ge=0)
    """What the steady arm pays every time."""
    high_reward: float = Field(default=1.0, gt=0)
    """What the risky arm pays when it pays."""
    high_rate: float = Field(default=0.25, ge=0, le=1)
    """How often the risky arm pays."""
    more_arms: Annotated[tuple[ExtraArm, ...], Field(strict=False)] = ()
    """Arms beside these two, such as [{name: Griffin, eval_name: Baker, hint: lazy, reward: 0.5, rate: 0.1}]."""

    def arms(self, split: str) -> tuple[Arm, ...]:
        """All arms under their names in a split: the steady one, the risky one, then the others."""
        is_train = split == "train"
        steady, risky = self.names if is_train else self.eval_names
        steady_hint, risky_hint = self.hints or ("", "")
        return (
            Arm(steady, steady_hint, self.low_reward, 1.0),
            Arm(risky, risky_hint, self.high_reward, self.high_rate),
            *(Arm(arm.name if is_train else arm.eval_name, arm.hint, arm.reward, arm.rate) for arm in self.more_arms),
        )

    @model_validator(mode="after")
    def _arms_differ(self) -> BanditParams:
        for split in SPLITS:
            names = [arm.name for arm in self.arms(split)]
            folded = {_fold(name) for name in names}
            if len(folded) < len(names) or "" in folded:
                raise ValueError(f"the arm names {_listed(map(repr, names))} cannot be told apart or are empty.")
        best, second = sorted((arm.mean for arm in self.arms("train")), reverse=True)[:2]
        if best == second:
            raise ValueError(
                f"two arms pay {best:g} on average, so none is better; change low_reward, high_rate or more_arms."
            )
        return self


def _fold(name: str) -> str:
    return name.strip().casefold()


class Bandit(BaseEnv):
    """One pull of one arm. Success is the choice of the arm with the highest mean, whatever it paid."""

    name = "bandit"
    rewards = "what the arm pays"
    Params: ClassVar[type[Settings]] = BanditParams
    has_oracle = True
    state_fields = ("_arms", "_text", "_luck")

    params: BanditParams

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        self._arms = self.params.arms("train")
        """In the order in which they are named."""
        self._text = ""
        self._luck = random.Random(0)

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        check_split(split, SPLITS, self.name)
        seed = random_seed() if seed is None else seed
        self._arms = _shuffled(self.params.arms(split), make_rng("layout", seed))
        self._luck = make_rng("luck", seed if dynamics_seed is None else dynamics_seed)
        self._text = self._describe_rules()
        self._phase = "playing"
        return self._text

    def step(self, action: str) -> tuple[str, float, bool, dict[str, object]]:
        self._require_playing()
        chosen = next((arm for arm in self._arms if _fold(arm.name) == _fold(action)), None)
        if chosen is None:
            return self._text, 0.0, False, _info(success=False, is_valid=False)
        reward = self._pull(chosen)
        self._phase = "over"
        self._text = f"{chosen.name} paid {reward:g}."
        return self._text, reward, True, _info(success=chosen == self._best_arm(), is_valid=True)

    def render(self) -> str:
        return self._text

    @property
    def action_names(self) -> tuple[str, ...]:
        return tuple(arm.name for arm in self._arms)

    @property
    def instructions(self) -> str:
        if len(self._arms) == 2:
            return "You may pull one of two arms, once. Choose the one that pays more on average."
        return f"You may pull one of {len(self._arms)} arms, once. Choose the one that pays most on average."

    def oracle(self) -> str:
        self._require_playing()
        return self._best_arm().name

    def _best_arm(self) -> Arm:
        return max(self._arms, key=lambda arm: arm.mean)

    def _pull(self, arm: Arm) -> float:
        # A sure thing asks for no luck.
        return arm.reward if arm.rate == 1 or self._luck.random() < arm.rate else 0.0

    def _describe_rules(self) -> str:
        text = f"The arms are {_listed(arm.name for arm in self._arms)}."
        if len(self._arms) == 2:
            text += " One pays the same every time. The other is a gamble."
        else:
            text += " Some pay the same every time. The others are gambles."
        if self.params.hints is None:
            return f"{text} Their names tell which is which."
        return f"{text} {', '.join(f'{arm.name} is said to be {arm.hint}' for arm in self._arms)}."


def _shuffled(arms: tuple[Arm, ...], rng: random.Random) -> tuple[Arm, ...]:
    """In any order with equal chance; of two arms, half of the draws exchange them."""
    order = list(arms)
    for last in range(len(order) - 1, 0, -1):
        place = int(rng.random() * (last + 1))
        order[place], order[last] = order[last], order[place]
    return tuple(order)


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}"


def _info(*, success: bool, is_valid: bool) -> dict[str, object]:
    return {"success": success, "action_is_valid": is_valid, "action_is_effective": is_valid}
