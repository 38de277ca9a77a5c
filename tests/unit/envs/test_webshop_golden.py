"""Parity with the real WebShop over 1,000 real products, where they are at hand."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from turnwise.envs.webshop import WebShop

from .shops import GOLDEN_TRACES, REAL_PRODUCTS, needs_real_products

pytestmark = needs_real_products
NUM_TRACES = 8


def trace_of(number: int) -> dict[str, Any]:
    with gzip.open(GOLDEN_TRACES, "rt") as file:
        return json.load(file)[number]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(NUM_TRACES))
def test_every_page_clickable_and_reward_of_a_real_episode(number: int) -> None:
    recorded = trace_of(number)
    env = WebShop(products=str(REAL_PRODUCTS), goal=recorded["goal"], compat=True)
    (_, first_page, first_state), *steps = recorded["trace"]
    assert env.reset(0) == first_page
    assert env.clickables == first_state["clickables"]
    for action, page, reward, done, state in steps:
        answer = env.step(action)
        assert answer[:3] == (page, reward, done)
        assert answer[3]["clickables"] == state["clickables"]


def test_the_goals_of_the_small_set_are_those_of_the_original() -> None:
    goals = WebShop(products=str(REAL_PRODUCTS)).catalogue.goals
    assert len(goals) == 6910
    assert len({goal.asin for goal in goals}) == 415
    recorded = [trace_of(number)["goal"] for number in range(NUM_TRACES)]
    # Price caps are drawn at random in the original, so the text is compared up to there.
    texts = {goal.instruction_text.partition(", and price lower")[0] for goal in goals}
    assert {goal["instruction_text"].partition(", and price lower")[0] for goal in recorded} <= texts


def test_the_oracle_buys_real_products() -> None:
    env = WebShop(products=str(REAL_PRODUCTS))
    for goal in env.catalogue.goals[::23]:
        env.reset(0)
        env.goal = goal
        done, reward = False, 0.0
        while not done:
            _, reward, done, _ = env.step(env.oracle())
        assert reward == 1, goal
