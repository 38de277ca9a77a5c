"""FrozenLake and Bandit: resets and steps per second of one core."""

from __future__ import annotations

import random
import time

from turnwise.envs.base import make_env

NUM_RESETS = 5000
NUM_STEPS = 50_000


def run() -> dict[str, object]:
    return {"benchmark": "envs_small", "envs": {name: _measure(name) for name in ("frozen_lake", "bandit")}}


def _measure(name: str) -> dict[str, float]:
    env, rng = make_env(name), random.Random(0)
    started = time.process_time()
    for seed in range(NUM_RESETS):
        env.reset(seed)
    resets_per_s = NUM_RESETS / (time.process_time() - started)
    actions = rng.choices(env.action_names or ("",), k=NUM_STEPS)
    # Most random episodes are short, so an episode begins again from a snapshot, outside of the measured time.
    env.reset(0)
    state = env.snapshot()
    seconds = 0.0
    for action in actions:
        started = time.process_time()
        done = env.step(action)[2]
        seconds += time.process_time() - started
        if done:
            env.restore(state)
    return {"levels_per_s": resets_per_s, "steps_per_s": NUM_STEPS / seconds}


if __name__ == "__main__":
    print(run())
