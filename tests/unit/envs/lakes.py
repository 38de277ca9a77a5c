"""The lakes and players that several tests share."""

from __future__ import annotations

import random
from collections.abc import Callable

from turnwise.envs.frozen_lake import FrozenLake

HARD_4X4: dict[str, object] = {
    "size": 4,
    "hole_rate": 0.3,
    "max_holes": 7,
    "min_distance": 2,
    "max_distance": 8,
    "blind_solvable_keep": 0.5,
}


def success_rate(
    env: FrozenLake, policy: Callable[[FrozenLake], str], *, num_episodes: int, max_turns: int, split: str = "eval"
) -> float:
    num_successes = 0
    for seed in range(num_episodes):
        env.reset(seed, split=split)
        for _ in range(max_turns):
            _, _, done, info = env.step(policy(env))
            if done:
                num_successes += bool(info["success"])
                break
    return num_successes / num_episodes


def random_policy(seed: int) -> Callable[[FrozenLake], str]:
    rng = random.Random(seed)
    return lambda env: rng.choice(env.action_names)
