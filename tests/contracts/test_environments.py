"""The contract of an environment, for registered ones, plug-ins, and worlds of every adapter: see `check_env`.

With TURNWISE_ALL_WORLDS=1 also every family of reasoning-gym, every game of textarena for one or two players, and
longer random play of adapted worlds.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnwise.config.component import ENVS
from turnwise.envs.base import BaseEnv, make_env
from turnwise.envs.check import check_env
from turnwise.envs.check_episodes import GARBAGE
from turnwise.envs.safe_calls import reset_env, step_env
from turnwise.errors import EnvError, TaskError
from turnwise.rollout.scripted_policies import Rule, list_policies, oracle_policy, random_rule, run_policy
from turnwise.types import Task

from .entries import names_of

pytestmark = pytest.mark.slow

ADAPTED = (
    "function:tests.contracts.test_environments:count_letters",
    "gymnasium:FrozenLake-v1",
    "gymnasium:Blackjack-v1",
    "reasoning_gym:leg_counting",
    "reasoning_gym:chain_sum",
    "textarena:GuessTheNumber-v0",
    "textarena:TicTacToe-v0",
)
ALL_WORLDS = bool(os.environ.get("TURNWISE_ALL_WORLDS"))
NUM_STEPS = 10_000
NUM_ADAPTED_STEPS = NUM_STEPS if ALL_WORLDS else 500
"""Worlds of other packages are slow; most of their steps are played on request."""
WITHOUT_LIST = ("prompts", "dataset", "function", "reasoning_gym", "textarena")
"""Any text is an action, and nobody knows which ones make sense."""
garbage = st.one_of(
    st.text(),
    st.text(alphabet="[]<>(){}|/\\%$\"'\x00\u202e", max_size=300),
    st.builds(lambda text, times: text * times, st.text(min_size=1, max_size=5), st.integers(1, 20_000)),
    st.builds(lambda times, inside: "[" * times + inside + "]" * times, st.integers(1, 3_000), st.text(max_size=5)),
    st.builds(lambda verb, text: f"{verb}[{text}]", st.sampled_from(["search", "click", "go", ""]), st.text()),
    st.text(alphabet="0123456789+-*/(). ^e", max_size=60),
    st.sampled_from(["", "\x00", "\ud800", "9" * 5_000, "1/0", "9**9**9", "\\boxed{" * 500, "-0", "None", "٣", "²"]),
)


def count_letters(seed: int, split: str) -> tuple[str, Callable[[str], float]]:
    word = "a" * (seed % 5 + 1)
    return f"How many letters has {word}?", lambda reply: float(reply.strip() == str(len(word)))


def is_missing(name: str) -> bool:
    package = name.partition(":")[0]
    return package in ("gymnasium", "reasoning_gym", "textarena") and find_spec(package) is None


def worlds(names: list[str]) -> list[object]:
    return [
        pytest.param(name, marks=pytest.mark.skipif(is_missing(name), reason=f"{name}: not installed"))
        for name in names
    ]


every_env = pytest.mark.parametrize("name", worlds([*names_of("env"), *ADAPTED]))


@every_env
def test_keeps_the_contract(name: str) -> None:
    report = check_env(name, num_episodes=3)
    assert report.ok, report.failures


def test_every_adapter_has_a_world_here() -> None:
    # Worlds behind an OpenEnv server are tested beside the server that they need, in test_openenv.py.
    # Those of packages that need a Python of their own are in test_envs_of_others.py.
    elsewhere = {"openenv", "gem", "verifiers"}
    assert {name.partition(":")[0] for name in ADAPTED} == set(ENVS.adapters) - elsewhere


def play(env: BaseEnv, seed: int, rule: Rule) -> tuple[float, bool]:
    """The return and whether it ended in success, within 60 actions."""
    task = Task(tag=env.label(), seed=seed)
    results = [move.result for move in run_policy(env, rule, task, max_actions=60, dynamics_seed=seed)]
    return sum(result.reward for result in results), results[-1].done and bool(results[-1].is_success)


@every_env
def test_the_oracle_succeeds_and_nobody_earns_more(name: str) -> None:
    env = make_env(name)
    if not env.has_oracle or env.is_judged:
        pytest.skip(f"{name} has no oracle of its own worth")
    oracles = [play(env, seed, oracle_policy) for seed in range(30)]
    assert all(success for _, success in oracles)
    if not env.admissible_actions():
        return
    for luck in range(3):
        others = [play(env, seed, random_rule(luck))[0] for seed in range(30)]
        if name == "bandit":
            # One pull is a matter of luck; many are not.
            assert sum(earned for earned, _ in oracles) > sum(others)
        else:
            assert all(best >= earned for (best, _), earned in zip(oracles, others, strict=True))


@pytest.mark.slow
@every_env
def test_random_play_raises_nothing(name: str) -> None:
    """Admissible actions and garbage by turns; the boundary raises EnvError for whatever an environment raises."""
    env, rng = make_env(name), random.Random(name)
    # A reply that is graded by an expression parser or a search costs more the longer it is; length has its own test.
    nonsense = [text[:200] for text in GARBAGE]
    num_steps = num_episodes = 0
    while num_steps < (NUM_ADAPTED_STEPS if ":" in name else NUM_STEPS):
        reset_env(env, num_episodes, split=rng.choice(["train", "eval"]))
        num_episodes += 1
        for _ in range(200):
            actions = env.admissible_actions()
            sensible = rng.choice(actions) if actions else str(rng.randrange(30))
            num_steps += 1
            if step_env(env, rng.choice(nonsense) if rng.random() < 0.3 else sensible).done:
                break


@every_env
def test_no_answer_raises(name: str) -> None:
    env = make_env(name)
    start = sum(map(ord, name))

    @settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(answers=st.lists(garbage, min_size=1, max_size=4))
    def raises_nothing(answers: list[str]) -> None:
        reset_env(env, start)
        for answer in answers:
            result = step_env(env, answer)
            result.text.encode()
            if result.done:
                return

    raises_nothing()


@every_env
def test_random_play_is_there_or_refused_in_words(name: str) -> None:
    env = make_env(name)
    text = reset_env(env, 0)
    if name in ENVS or name in ADAPTED:
        assert bool(env.admissible_actions()) != name.startswith(WITHOUT_LIST)
    if not env.admissible_actions():
        assert "random" not in list_policies(env)
        with pytest.raises(EnvError, match=r"knows no list of actions, so random play has nothing to draw from"):
            random_rule(0)(env, text)
    else:
        assert "random" in list_policies(env)
        assert step_env(env, random_rule(0)(env, text)).is_valid


# --- slow, on request -------------------------------------------------------------------------------------------------


def every_foreign_world() -> list[str]:
    if not ALL_WORLDS:
        return []
    names: list[str] = []
    if find_spec("reasoning_gym"):
        from reasoning_gym.factory import DATASETS  # noqa: PLC0415

        names += [f"reasoning_gym:{family}" for family in sorted(DATASETS)]
    if find_spec("textarena"):
        from textarena.envs.registration import ENV_REGISTRY  # noqa: PLC0415

        names += [f"textarena:{game}" for game in sorted(ENV_REGISTRY) if game.endswith("-v0")]
    return names


@pytest.mark.parametrize("name", every_foreign_world())
def test_every_foreign_world_keeps_the_contract(name: str) -> None:
    try:
        reset_env(make_env(name), 0)
    except TaskError as error:
        pytest.skip(str(error))
    report = check_env(name, num_episodes=2)
    assert report.ok, report.failures
