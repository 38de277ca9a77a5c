"""Bandit: two arms, one pull; the steady arm pays little for sure, the risky arm pays more on average.

In come seeds and the name of an arm; out come the rules as text, and the payoff that ends the episode. It refuses to
know anything beyond one pull: what the arms are worth must be learnt over many episodes.
"""

from __future__ import annotations

import random
from typing import Annotated, Any, ClassVar, cast

from pydantic import Field, model_validator

from turnwise.config.settings import Settings
from turnwise.envs.base import BaseEnv, check_split, draw_seed, make_rng

SPLITS = ("train", "eval")

# Lists are welcome where a pair is meant, because YAML knows no tuples.
Pair = Annotated[tuple[str, str], Field(strict=False)]


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

    @model_validator(mode="after")
    def _arms_differ(self) -> BanditParams:
        for pair in (self.names, self.eval_names):
            if _fold(pair[0]) == _fold(pair[1]) or not all(_fold(name) for name in pair):
                raise ValueError(f"the arm names {pair[0]!r} and {pair[1]!r} cannot be told apart or are empty.")
        if self.low_reward == self.high_reward * self.high_rate:
            raise ValueError(
                f"both arms pay {self.low_reward:g} on average, so none is better; change low_reward or high_rate."
            )
        return self


def _fold(name: str) -> str:
    return name.strip().casefold()


class Bandit(BaseEnv):
    """One pull of one of two arms. Success is the choice of the arm with the higher mean, whatever it paid."""

    name = "bandit"
    Params: ClassVar[type[Settings]] = BanditParams
    has_oracle = True

    params: BanditParams

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        self._steady, self._risky = self.params.names
        self._order = self.params.names
        self._text = ""
        self._luck = random.Random(0)

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        check_split(split, SPLITS, self.name)
        seed = draw_seed() if seed is None else seed
        self._steady, self._risky = self.params.names if split == "train" else self.params.eval_names
        is_swapped = make_rng("layout", seed).random() < 0.5
        self._order = (self._risky, self._steady) if is_swapped else (self._steady, self._risky)
        self._luck = make_rng("luck", seed if dynamics_seed is None else dynamics_seed)
        self._text = self._describe_rules()
        self._phase = "playing"
        return self._text

    def step(self, action: str) -> tuple[str, float, bool, dict[str, object]]:
        self._require_playing()
        chosen = next((name for name in self._order if _fold(name) == _fold(action)), None)
        if chosen is None:
            return self._text, 0.0, False, _info(success=False, is_valid=False)
        reward = self._pull(chosen)
        self._phase = "over"
        self._text = f"{chosen} paid {reward:g}."
        return self._text, reward, True, _info(success=chosen == self._better_arm(), is_valid=True)

    def render(self) -> str:
        return self._text

    @property
    def action_names(self) -> tuple[str, ...]:
        return self._order

    @property
    def instructions(self) -> str:
        return "You may pull one of two arms, once. Choose the one that pays more on average."

    def oracle(self) -> str:
        self._require_playing()
        return self._better_arm()

    def snapshot(self) -> object:
        return self._steady, self._risky, self._order, self._text, self._phase, self._luck.getstate()

    def restore(self, state: object) -> None:
        saved = cast("tuple[str, str, tuple[str, str], str, Any, Any]", state)
        self._steady, self._risky, self._order, self._text, self._phase, luck = saved
        self._luck = random.Random()
        self._luck.setstate(luck)

    def _better_arm(self) -> str:
        is_risk_worth_it = self.params.high_reward * self.params.high_rate > self.params.low_reward
        return self._risky if is_risk_worth_it else self._steady

    def _pull(self, arm: str) -> float:
        if arm == self._steady:
            return self.params.low_reward
        return self.params.high_reward if self._luck.random() < self.params.high_rate else 0.0

    def _describe_rules(self) -> str:
        first, second = self._order
        text = f"The arms are {first} and {second}. One pays the same every time. The other is a gamble."
        if self.params.hints is None:
            return f"{text} Their names tell which is which."
        hints = dict(zip((self._steady, self._risky), self.params.hints, strict=True))
        return f"{text} {first} is said to be {hints[first]}, {second} is said to be {hints[second]}."


def _info(*, success: bool, is_valid: bool) -> dict[str, object]:
    return {"success": success, "action_is_valid": is_valid, "action_is_effective": is_valid}
