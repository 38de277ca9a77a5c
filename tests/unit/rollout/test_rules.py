"""Yardsticks: random play, simple rules and the oracle."""

from __future__ import annotations

import pytest

from turnwise.envs.base import BaseEnv
from turnwise.envs.frozen_lake import FrozenLake
from turnwise.errors import EnvError
from turnwise.rollout.rules import measure_rule, random_rule, rules_of
from turnwise.types import Task

from .worlds import WordWorld

LAKES = [Task(tag="frozen_lake", seed=seed, split="eval") for seed in range(40)]


def test_rules_are_listed_weakest_first() -> None:
    assert list(rules_of(FrozenLake())) == ["random", "hole_blind", "myopic", "oracle"]


def test_the_oracle_always_arrives_and_random_play_does_not() -> None:
    env = FrozenLake(size=4, hole_rate=0.2)
    rules = rules_of(env)
    assert measure_rule(env, rules["oracle"], LAKES, max_actions=20) == (1.0, 1.0)
    assert measure_rule(env, rules["random"], LAKES, max_actions=20)[0] < 0.7


def test_success_and_return_are_means_within_the_budget() -> None:
    tasks = [Task(tag="words", seed=seed) for seed in range(3)]
    assert measure_rule(WordWorld(), lambda env, _: env.oracle(), tasks, max_actions=3) == (1.0, 3.0)
    assert measure_rule(WordWorld(), lambda env, _: env.oracle(), tasks, max_actions=2) == (0.0, 2.0)
    assert measure_rule(WordWorld(), lambda *_: "lose", tasks, max_actions=5) == (0.0, 0.0)


def test_random_play_has_dice_of_its_own() -> None:
    env = WordWorld()
    first, second, other = random_rule(1), random_rule(1), random_rule(2)
    drawn = [[rule(env, "") for _ in range(20)] for rule in (first, second, other)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    assert set(drawn[0]) == set(env.action_names)


def test_random_play_needs_a_list_of_actions() -> None:
    class FreeText(WordWorld):
        action_names = BaseEnv.action_names

    assert "random" not in rules_of(FreeText())
    with pytest.raises(EnvError, match="knows no list of actions"):
        random_rule(0)(FreeText(), "")


def test_a_baseline_with_a_reward_that_is_no_number_loses_and_the_run_goes_on() -> None:
    class Cursed(WordWorld):
        def step(self, action: str) -> tuple[object, ...]:
            text, _, done, info = super().step(action)
            return text, float("nan"), done, info

    assert measure_rule(Cursed(), lambda *_: "win", [Task(tag="words", seed=0)], max_actions=3) == (0.0, 0.0)


def test_a_baseline_that_raises_or_chooses_no_text_loses() -> None:
    def broken(*_: object) -> str:
        raise ZeroDivisionError

    for rule in (broken, lambda *_: 7):
        assert measure_rule(WordWorld(), rule, [Task(tag="words", seed=0)], max_actions=3) == (0.0, 0.0)  # type: ignore[arg-type]
