"""Texts that a tokenizer for an environment should know well: what it says, and what may be answered."""

from __future__ import annotations

from turnwise.context.answer import render_answer
from turnwise.context.manager import write_preamble
from turnwise.envs.base import BaseEnv
from turnwise.envs.boundary import describe_env, reset_env
from turnwise.loop.worlds import World

_NUM_EPISODES = 400
_PREAMBLE_WEIGHT = 50
"""The instructions stand in every first prompt; counted once, their words would stay in single bytes."""


def draw_sample_texts(world: World) -> list[str]:
    """First observations and rendered answers of training tasks; the same for the same world."""
    env = world.make("train")
    texts: list[str] = []
    for seed in range(_NUM_EPISODES):
        observation = reset_env(env, seed=seed, split="train")
        # Observations stand behind a role token or behind a line break; words look different there.
        texts += [observation, f"\n{observation}", f" {observation}"]
        answers = _known_answers(env)
        texts += [render_answer([answer], world.context.answer) for answer in answers]
        texts += answers
    texts += [write_preamble(describe_env(env), world.context)] * _PREAMBLE_WEIGHT
    return texts


def _known_answers(env: BaseEnv) -> tuple[str, ...]:
    """The actions of the episode; where any text is one, the oracle's."""
    if env.action_names is None and env.has_oracle:
        return (env.oracle(),)
    return env.action_names or ()
