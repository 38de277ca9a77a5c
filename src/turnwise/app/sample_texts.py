"""Texts that a tokenizer for an environment should know well: what it says, and what may be answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from turnwise.config.component import ENVS
from turnwise.context.answer import render_answer, write_preamble
from turnwise.envs.base import BaseEnv
from turnwise.envs.safe_calls import closing_env, describe_env, reset_env
from turnwise.rollout.rules import oracle_rule, play_rule
from turnwise.rollout.worlds import World
from turnwise.types import Task

_NUM_EPISODES = 400
_NUM_SLOW_EPISODES = 16
"""Where a reset may take a second; the words that were not met stay in single bytes."""
_PREAMBLE_WEIGHT = 50
"""The instructions stand in every first prompt; counted once, their words would stay in single bytes."""

_MAX_CHARACTERS = 20_000
"""Of one observation: beyond it there is nothing new to learn about its words."""


def draw_sample_texts(world: World) -> list[str]:
    """Observations and rendered answers of training tasks; the same for the same world."""
    with closing_env(world.make("train")) as env:
        return _draw(world, env)


def _draw(world: World, env: BaseEnv) -> list[str]:
    # By what the class says: the same world in a process of its own has the same tokenizer.
    is_slow = cast("type[BaseEnv]", ENVS.get_target(world.env.type)).is_slow
    texts: list[str] = []
    for seed in range(_NUM_SLOW_EPISODES if is_slow else _NUM_EPISODES):
        task = Task(tag=world.tag, seed=seed)
        observation = reset_env(env, seed=seed, split=task.split)
        if env.action_names is None and env.has_oracle:
            # Where any text is an answer, the words of a game are only met by playing it.
            for move in play_rule(env, oracle_rule, task, max_actions=world.limits.max_turns):
                texts += _texts_of_turn(move.observation, (move.action,), world)
        else:
            texts += _texts_of_turn(observation, env.action_names or (), world)
    texts += [write_preamble(describe_env(env), world.context)] * _PREAMBLE_WEIGHT
    return texts


def _texts_of_turn(observation: str, answers: Sequence[str], world: World) -> list[str]:
    # Observations stand behind a role token or behind a line break; words look different there.
    observation = observation[:_MAX_CHARACTERS]
    seen = [observation, f"\n{observation}", f" {observation}"]
    return [*seen, *(render_answer([answer], world.context.answer) for answer in answers), *answers]
