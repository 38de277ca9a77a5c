"""Texts that a tokenizer for an environment should know well: what it says, and what may be answered."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.context.answer import render_answer
from turnwise.context.manager import write_preamble
from turnwise.envs.base import BaseEnv
from turnwise.envs.boundary import describe_env, reset_env, step_env
from turnwise.loop.worlds import World

_NUM_EPISODES = 400
_PREAMBLE_WEIGHT = 50
"""The instructions stand in every first prompt; counted once, their words would stay in single bytes."""


def draw_sample_texts(world: World) -> list[str]:
    """Observations and rendered answers of training tasks; the same for the same world."""
    env = world.make("train")
    texts: list[str] = []
    for seed in range(_NUM_EPISODES):
        observation = reset_env(env, seed=seed, split="train")
        if env.action_names is None and env.has_oracle:
            texts += _play_oracle(env, observation, world)
        else:
            texts += _texts_of_turn(observation, env.action_names or (), world)
    texts += [write_preamble(describe_env(env), world.context)] * _PREAMBLE_WEIGHT
    return texts


def _texts_of_turn(observation: str, answers: Sequence[str], world: World) -> list[str]:
    # Observations stand behind a role token or behind a line break; words look different there.
    seen = [observation, f"\n{observation}", f" {observation}"]
    return [*seen, *(render_answer([answer], world.context.answer) for answer in answers), *answers]


def _play_oracle(env: BaseEnv, observation: str, world: World) -> list[str]:
    """Where any text is an answer, the words of a game are only met by playing it."""
    texts: list[str] = []
    for _ in range(world.limits.max_turns):
        answer = env.oracle()
        texts += _texts_of_turn(observation, (answer,), world)
        result = step_env(env, answer)
        if result.done:
            break
        observation = result.text
    return texts
