"""The bandit: payoffs, luck, names and splits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.envs.bandit import Bandit
from turnwise.envs.check import check_env
from turnwise.errors import ConfigError, EnvError, TaskError


def test_steady_arm_always_pays_the_same() -> None:
    env = Bandit()
    for seed in range(20):
        env.reset(seed)
        text, reward, done, info = env.step("Phoenix")
        assert (text, reward, done) == ("Phoenix paid 0.1.", 0.1, True)
        assert info == {"success": False, "action_is_valid": True, "action_is_effective": True}


def test_risky_arm_pays_sometimes_and_success_is_the_choice() -> None:
    env = Bandit()
    rewards = []
    for dynamics_seed in range(2000):
        env.reset(0, dynamics_seed=dynamics_seed)
        _, reward, done, info = env.step("dragon ")
        assert done
        assert info["success"] is True
        rewards.append(reward)
    assert set(rewards) == {0.0, 1.0}
    assert sum(rewards) / 2000 == pytest.approx(0.25, abs=0.04)


def test_equal_seeds_have_equal_luck() -> None:
    def luck(env: Bandit) -> list[float]:
        rewards = []
        for seed in range(40):
            env.reset(seed)
            rewards.append(env.step("Dragon")[1])
        return rewards

    assert luck(Bandit()) == luck(Bandit())
    assert len(set(luck(Bandit()))) == 2


def test_order_is_shuffled_by_the_seed_alone() -> None:
    env = Bandit()
    orders = []
    for seed in range(50):
        env.reset(seed, dynamics_seed=1)
        orders.append(env.action_names)
        text = env.reset(seed, dynamics_seed=2)
        assert env.action_names == orders[-1]
        assert text.startswith(f"The arms are {orders[-1][0]} and {orders[-1][1]}.")
    assert set(orders) == {("Phoenix", "Dragon"), ("Dragon", "Phoenix")}


def test_eval_uses_other_names() -> None:
    env = Bandit(eval_names=["Teacher", "Engineer"])
    text = env.reset(0, split="eval")
    assert set(env.action_names) == {"Teacher", "Engineer"}
    assert "Dragon" not in text
    assert env.step("Dragon")[3]["action_is_valid"] is False
    assert env.step("Engineer")[3]["success"] is True
    with pytest.raises(TaskError, match="train, eval"):
        env.reset(0, split="test")


def test_exchanged_names_are_the_reversed_variant() -> None:
    env = Bandit(names=("Dragon", "Phoenix"))
    text = env.reset(0)
    assert "Phoenix is said to be daring" in text
    assert env.oracle() == "Phoenix"


def test_hints_tell_the_arms_apart_unless_left_out() -> None:
    text = Bandit(hints=("calm", "wild")).reset(0)
    assert "Phoenix is said to be calm" in text
    assert "Dragon is said to be wild" in text
    assert "said" not in Bandit(hints=None).reset(0)


def test_oracle_follows_the_expected_payoff() -> None:
    env = Bandit(high_rate=0.05)
    env.reset(0)
    assert env.oracle() == "Phoenix"
    assert env.step("Phoenix")[3]["success"] is True


GRIFFIN = {"name": "Griffin", "eval_name": "Baker", "hint": "lazy", "reward": 0.5, "rate": 0.2}
HYDRA = {"name": "Hydra", "eval_name": "Singer", "hint": "rich", "reward": 0.6, "rate": 1.0}


def test_more_arms_have_names_hints_and_payoffs_of_their_own() -> None:
    env = Bandit(more_arms=[GRIFFIN, HYDRA])
    orders, paid = set(), set()
    for seed in range(200):
        text = env.reset(seed)
        orders.add(env.action_names)
        first, second, third, last = env.action_names
        assert text.startswith(f"The arms are {first}, {second}, {third} and {last}. Some pay the same every time.")
        assert "Griffin is said to be lazy" in text
        assert env.oracle() == "Hydra"
        _, reward, _, info = env.step("Griffin")
        paid.add(reward)
        assert info["success"] is False
    assert len(orders) == 24
    assert paid == {0.0, 0.5}
    assert env.instructions == "You may pull one of 4 arms, once. Choose the one that pays most on average."
    env.reset(0, split="eval")
    assert set(env.action_names) == {"Librarian", "Trader", "Baker", "Singer"}
    assert env.step("singer")[1:3] == (0.6, True)


def test_the_two_arms_of_published_seeds_keep_their_order_and_luck() -> None:
    """A change here changes every published number."""
    env = Bandit()
    orders, luck = "", ""
    for seed in range(20):
        env.reset(seed)
        orders += env.action_names[0][0]
        luck += f"{env.step('Dragon')[1]:g}"
    assert (orders, luck) == ("PPPDDDPPDDDPPDDDPDDD", "00010000100100010000")


def test_more_arms_keep_the_contract() -> None:
    report = check_env(lambda: Bandit(more_arms=[GRIFFIN]), num_episodes=10)
    assert report.ok, report.failures


def test_invalid_text_leaves_the_episode_open() -> None:
    env = Bandit()
    text = env.reset(0)
    assert env.step("Griffin") == (
        text,
        0.0,
        False,
        {"success": False, "action_is_valid": False, "action_is_effective": False},
    )
    assert env.step("Phoenix")[2]
    with pytest.raises(EnvError, match="episode is over"):
        env.step("Phoenix")


@given(st.text())
def test_any_other_text_is_invalid_and_changes_nothing(action: str) -> None:
    env = Bandit()
    text = env.reset(0)
    if action.strip().casefold() not in ("phoenix", "dragon"):
        assert env.step(action)[:3] == (text, 0.0, False)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"names": ("Owl", "owl ")}, "cannot be told apart"),
        ({"names": ("Owl", "")}, "cannot be told apart or are empty"),
        ({"low_reward": 0.25}, "none is better"),
        ({"high_rat": 0.25}, "Did you mean 'high_rate'?"),
        ({"names": ["Owl"]}, "names"),
        ({"more_arms": [{**GRIFFIN, "name": "dragon"}]}, "'Phoenix', 'Dragon' and 'dragon' cannot be told apart"),
        ({"more_arms": [{**GRIFFIN, "eval_name": "Trader"}]}, "cannot be told apart"),
        ({"more_arms": [HYDRA, {**HYDRA, "name": "Troll", "eval_name": "Cook"}]}, "two arms pay 0.6 on average"),
        ({"more_arms": [{**GRIFFIN, "rate": 2.0}]}, "more_arms.0.rate: 2.0 given"),
    ],
)
def test_wrong_settings_are_explained(params: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Bandit(**params)
    assert message in str(caught.value)
