"""Yardsticks: random play, simple rules and the oracle."""

from __future__ import annotations

import pytest

from turnwise.envs.base import BaseEnv
from turnwise.envs.frozen_lake import FrozenLake
from turnwise.errors import EnvError
from turnwise.rollout.scripted_policies import Rule, list_policies, random_rule, record_episode
from turnwise.types import StopReason, Task

from .worlds import WordWorld


def measure(env: BaseEnv, rule: Rule, tasks: list[Task], max_actions: int) -> tuple[float, float]:
    played = [record_episode(env, rule, task, max_actions) for task in tasks]
    return sum(t.is_success for t in played) / len(played), sum(t.episode_return for t in played) / len(played)


LAKES = [Task(tag="frozen_lake", seed=seed, split="eval") for seed in range(40)]


def test_rules_are_listed_weakest_first() -> None:
    assert list(list_policies(FrozenLake())) == ["random", "hole_blind", "myopic", "oracle"]


def test_the_oracle_always_arrives_and_random_play_does_not() -> None:
    env = FrozenLake(size=4, hole_rate=0.2)
    rules = list_policies(env)
    assert measure(env, rules["oracle"], LAKES, max_actions=20) == (1.0, 1.0)
    assert measure(env, rules["random"], LAKES, max_actions=20)[0] < 0.7


def test_success_and_return_are_means_within_the_budget() -> None:
    tasks = [Task(tag="words", seed=seed) for seed in range(3)]
    assert measure(WordWorld(), lambda env, _: env.oracle(), tasks, max_actions=3) == (1.0, 3.0)
    assert measure(WordWorld(), lambda env, _: env.oracle(), tasks, max_actions=2) == (0.0, 2.0)
    assert measure(WordWorld(), lambda *_: "lose", tasks, max_actions=5) == (0.0, 0.0)


def test_a_rule_leaves_a_trajectory_as_a_rollout_would() -> None:
    played = record_episode(WordWorld(), lambda env, _: env.oracle(), Task(tag="words", seed=0), 3)
    assert [turn.actions for turn in played.turns] == [(turn.response_text,) for turn in played.turns]
    assert (played.stop_reason, played.is_success, played.segments) == (StopReason.TERMINATED, True, ())
    cut = record_episode(WordWorld(), lambda env, _: env.oracle(), Task(tag="words", seed=0), 2)
    assert (cut.stop_reason, cut.is_success) == (StopReason.MAX_ACTIONS, False)
    assert [turn.index for turn in cut.turns] == [0, 1]


def test_siblings_of_a_rule_take_other_chances() -> None:
    env = FrozenLake(size=4, is_slippery=True)
    rule = list_policies(env)["hole_blind"]
    ends = [record_episode(env, rule, LAKES[0], 50, sibling=n).turns for n in (0, 0, 1, 2, 3)]
    assert ends[0] == ends[1]
    assert any(other != ends[0] for other in ends[2:])


def test_a_rule_that_fails_keeps_what_it_earned() -> None:
    def broken(env: BaseEnv, _text: str) -> str:
        raise EnvError("no idea")

    played = record_episode(WordWorld(), broken, Task(tag="words", seed=0), 3)
    assert (played.stop_reason, played.failure) == (StopReason.ENV_ERROR, "no idea")


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

    assert "random" not in list_policies(FreeText())
    with pytest.raises(EnvError, match="knows no list of actions"):
        random_rule(0)(FreeText(), "")


def test_a_baseline_with_a_reward_that_is_no_number_loses_and_the_run_goes_on() -> None:
    class Cursed(WordWorld):
        def step(self, action: str) -> tuple[object, ...]:
            text, _, done, info = super().step(action)
            return text, float("nan"), done, info

    played = record_episode(Cursed(), lambda *_: "win", Task(tag="words", seed=0), 3)
    assert (played.stop_reason, played.is_success) == (StopReason.ENV_ERROR, False)


def test_a_baseline_that_raises_or_chooses_no_text_loses() -> None:
    def broken(*_: object) -> str:
        raise ZeroDivisionError

    for rule in (broken, lambda *_: 7):
        played = record_episode(WordWorld(), rule, Task(tag="words", seed=0), 3)  # type: ignore[arg-type]
        assert (played.stop_reason, played.is_success) == (StopReason.ENV_ERROR, False)
